r"""Equations of docstrings as text for a terminal: ``\frac{N_m}{N} \theta_m^{t+1}`` becomes ``N_m / N θ_mᵗ⁺¹``."""

import re
from collections.abc import Iterator

TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}_^&]|\s+|.", flags=re.S)
SIGNS = """
alpha α  beta β  gamma γ  delta δ  epsilon ε  eta η  theta θ  kappa κ  lambda λ  mu μ  nu ν  pi π  rho ρ  sigma σ  tau τ  phi φ  omega ω  ell ℓ
Delta Δ  Gamma Γ  Pi Π  sum Σ  prod ∏  bigcup ⋃  nabla ∇  infty ∞  top T  le ≤  ge ≥  ne ≠  in ∈  to →  gets ←  iff ⇔  propto ∝  approx ≈
odot ⊙  cdot ·  times ×  perp ⊥  ldots …  dots …  langle ⟨  rangle ⟩  lfloor ⌊  rfloor ⌋  lVert ‖  rVert ‖  lvert |  rvert |  mid |  | ‖
"""
SPACES = {"qquad": "   ", "quad": "  ", "\\": "\n"} | dict.fromkeys((",", ";"), " ")
SYMBOLS = (
    dict(re.findall(r"(\S+) (\S+)", SIGNS))
    | SPACES
    | dict.fromkeys(("!", "left", "right", "Big", "big", "textstyle"), "")
)
OVER = {"bar": "\u0304", "overline": "\u0304", "tilde": "\u0303", "hat": "\u0302"}
PLAIN = {"text", "operatorname", "mathrm", "mathcal", "mathbf"}
RAISED = str.maketrans("0123456789+-=()int", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁱⁿᵗ")
LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def plain_equation(latex: str) -> str:
    """An equation as text; what is not known of LaTeX stays as it is."""
    text = _group(iter(TOKEN.findall(latex.replace(r"\operatorname*", r"\operatorname"))))
    return re.sub(r"(?<=\S)  (?=\S)", " ", text)


def _group(tokens: Iterator[str]) -> str:
    """Everything up to the brace that closes, or the end."""
    parts = list[str]()
    for token in tokens:
        if token == "}":
            break
        parts.append(_item(token, tokens))
    return "".join(parts)


def _item(token: str, tokens: Iterator[str]) -> str:
    if token == "{":
        return _group(tokens)
    if token in "^_":
        return _script(token, _next(tokens))
    name = token.removeprefix("\\")
    if token == "&" or not token.startswith("\\"):
        return token.replace("&", "").replace("-", "−")
    if name in ("frac", "tfrac", "dfrac"):
        above, below = _next(tokens), _next(tokens)
        return f"{_whole(above)} / {_whole(below)}"
    if name in OVER:
        inner = _next(tokens)
        return inner[0] + OVER[name] + inner[1:] if len(inner) < 3 else f"mean({inner})"
    if name == "sqrt":
        return f"√({_next(tokens)})"
    return _next(tokens) if name in PLAIN else SYMBOLS.get(name, name)


def _next(tokens: Iterator[str]) -> str:
    """The argument that follows: a group, or one sign."""
    token = next((token for token in tokens if not token.isspace()), "")
    return _item(token, tokens) if token else ""


def _script(sign: str, text: str) -> str:
    small = text.translate(RAISED if sign == "^" else LOWERED)
    if not set(small) & set(text):
        return small
    return f"{sign}{text}" if len(text) == 1 or text.isalpha() or text.startswith("(") else f"{sign}({text})"


def _whole(text: str) -> str:
    """In brackets where it has several parts."""
    return f"({text})" if re.search(r"[\s+−]", text.strip()) else text
