"""Certificates of a federation: who the server is, and which sites may join.

A directory holds ``ca.crt`` (every site needs it), ``ca.key`` (signs server certificates; keep it offline), ``server.pem``
and ``server.key`` (the server's), and for every site ``NAME`` (its private key, which stays there) and ``NAME.pub`` (what
the server registers).
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from equipoise.system.errors import InputError
from equipoise.system.files import PRIVATE, make_private, open_new, open_to_others

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "Certificates need the package cryptography, which is not installed: pip install 'equipoise[flower]'.",
        name="cryptography",
    ) from None


CA_DAYS = 3650  # an authority outlives the server certificates it signs
HOSTS = ("localhost", "127.0.0.1")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TAKEN = ("superlink", "server", "run", "ca")  # names of files and services beside those of sites


def site_names(sites: int | Sequence[str]) -> tuple[str, ...]:
    """Names of sites: those that are given, or ``site-0``, ``site-1``, ... for a number of them.

    Raises
    ------
    InputError : a name that is no plain file name, taken, or there twice.
    """
    names = tuple(f"site-{k}" for k in range(sites)) if isinstance(sites, int) else tuple(sites)
    for name in names:
        if not NAME.fullmatch(name) or name in TAKEN or name.endswith((".pub", ".crt", ".key", ".pem")):
            raise InputError(
                f"{name!r} cannot name a site: use letters, digits and . _ - only, at most 64, and not {', '.join(TAKEN)}."
            )
    if len(set(names)) < len(names):
        raise InputError(f"Every site needs a different name; found {', '.join(names)}.")
    return names


def make_certificates(
    directory: str | Path, hosts: Sequence[str] = HOSTS, sites: Sequence[str] = (), days: int = 365, renew: bool = False
) -> list[Path]:
    """Make what is missing: an authority and a server certificate for ``hosts``, and a key pair per site.

    Parameters
    ----------
    directory : where the files go; it is made if missing.
    hosts : names and IP addresses by which sites reach the server; empty: no server certificate is made. The server's own
        processes use ``localhost`` and 127.0.0.1, which are always added. An authority that is there signs the new one too.
    sites : their names, see :func:`site_names`.
    days : >= 1, life of the server certificate, at most that of the authority (3650).
    renew : make a server certificate in place of the one that is there, for its hosts unless others are given. The old one
        and its key are kept beside: ``server-BEGIN.pem`` and ``.key``, with the moment at which its life began.

    Returns
    -------
    The files made; private ones can be read by their owner only.

    Raises
    ------
    InputError : a file is there already (nothing is ever overwritten), or a name, host or number is out of range.
    """
    base, renamed = Path(directory), dict[Path, Path]()
    if renew:
        if missing := [name for name in ("server.pem", "server.key", "ca.crt", "ca.key") if not (base / name).exists()]:
            raise InputError(
                f"{base} holds no {', no '.join(missing)}, and renewing needs it. Bring ca.key from where it is kept offline, and take it away afterwards."
            )
        old = read(base / "server.pem")
        hosts = hosts or hosts_of(old)
        begin = f"{old.not_valid_before_utc:%Y%m%d-%H%M%S}"
        renamed = {base / f"server{end}": base / f"server-{begin}{end}" for end in (".pem", ".key")}
    if not 1 <= days <= CA_DAYS:
        raise InputError(f"days must be in 1..{CA_DAYS}; found {days}.")
    if not hosts and not sites:
        raise InputError("There is nothing to make: give hosts of the server, or names of sites.")
    if sites:
        site_names(sites)
    for host in hosts:
        _general_name(host)
    wanted = [base / name for site in sites for name in (site, f"{site}.pub")]
    wanted += [*renamed.values()] or [base / "server.pem", base / "server.key"] * bool(hosts)
    if existing := [str(path) for path in wanted if path.exists()]:
        raise InputError(
            f"{', '.join(existing)} exists already and is not overwritten. A server certificate is renewed with --renew; a new key of a site needs another directory."
        )
    make_private(base, 0o755)
    made = _server(base, list(dict.fromkeys([*hosts, *HOSTS])), days, renamed) if hosts else []
    for site in sites:
        made += _site(base, site)
    return made


def read(path: str | Path) -> x509.Certificate:
    """The first certificate of a PEM file.

    Raises
    ------
    InputError : no file, or no certificate in it.
    """
    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}. Make certificates: equipoise flower certs.") from None
    except ValueError:
        raise InputError(f"{path} holds no certificate in PEM form. Make one: equipoise flower certs.") from None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    extensions = [extension.value for extension in certificate.extensions]
    names = next((x for x in extensions if isinstance(x, x509.SubjectAlternativeName)), x509.GeneralNames([]))
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def days_left(certificate: x509.Certificate) -> int:
    """Whole days until a certificate ends, negative once it has ended."""
    return (certificate.not_valid_after_utc - datetime.now(UTC)).days


def problems(server: str | Path, ca: str | Path, host: str, now: datetime | None = None) -> list[str]:
    """Why sites could not trust a server certificate, one sentence each; empty if they can.

    ``server`` and ``ca`` are PEM files, ``host`` is the name or address by which sites reach the server.

    Raises
    ------
    InputError : a file that cannot be read.
    """
    moment = now or datetime.now(UTC)
    certificate, authority = read(server), read(ca)
    faults = []
    for path, part in ((server, certificate), (ca, authority)):
        begins, ends = part.not_valid_before_utc, part.not_valid_after_utc
        if moment >= ends:
            faults.append(f"{path} ended on {ends:%Y-%m-%d}. Make a new one: equipoise flower certs.")
        if moment < begins:
            faults.append(f"{path} begins on {begins:%Y-%m-%d %H:%M} UTC only. Is this machine's clock right?")
    extensions = (extension.value for extension in authority.extensions)
    if not any(isinstance(x, x509.BasicConstraints) and x.ca for x in extensions):
        faults.append(f"{ca} is not the certificate of an authority. Give the ca.crt that signed {server}.")
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        faults.append(f"{server} was not signed by {ca}. Use the two files of one directory.")
    if host not in (hosts := hosts_of(certificate)):
        faults.append(
            f"{server} does not stand for {host}, only for {', '.join(hosts) or 'no host'}. "
            f"Make one that does: equipoise flower certs DIR --host {host}."
        )
    return faults


def key_problems(private: str | Path) -> list[str]:
    """Why a site could not log in with a private key, one sentence each; empty if it can."""
    path = Path(private)
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        return [f"{path}: {error.strerror}."]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return [f"{path} is not an unprotected private key in OpenSSH format. Make one: equipoise flower certs."]
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return [
            f"{path} is not an elliptic-curve (ECDSA) key, which Flower asks for. Make one: equipoise flower certs."
        ]
    faults = []
    if open_to_others(path):
        faults.append(f"{path} can be read by others. Let only its owner read it: chmod 600 {path}.")
    public = path.with_name(path.name + ".pub")
    if public.exists():
        try:
            fits = load_ssh_public_key(public.read_bytes()) == key.public_key()
        except (ValueError, UnsupportedAlgorithm):
            fits = False
        if not fits:
            faults.append(f"{public} is not the public half of {path}. Make a new pair: equipoise flower certs.")
    return faults


def _server(base: Path, hosts: Sequence[str], days: int, renamed: Mapping[Path, Path]) -> list[Path]:
    """Sign a certificate for ``hosts``, with an authority that is made if there is none; ``renamed`` files get their other names."""
    made = list[Path]()
    if (base / "ca.crt").exists() != (base / "ca.key").exists():
        raise InputError(
            f"{base} holds one of ca.crt and ca.key, and signing needs both. Put the other one there, or choose an empty directory."
        )
    if (base / "ca.crt").exists():
        authority = read(base / "ca.crt")
        loaded = serialization.load_pem_private_key((base / "ca.key").read_bytes(), password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise InputError(f"{base / 'ca.key'} was not made by equipoise flower certs, which signs with ECDSA.")
        if loaded.public_key() != authority.public_key():
            raise InputError(
                f"{base / 'ca.key'} is not the key of {base / 'ca.crt'}: sites would trust no certificate of it."
            )
        ca = loaded
    else:
        ca = ec.generate_private_key(ec.SECP384R1())
        name = f"Equipoise federation {x509.random_serial_number():x}"[:36]  # two authorities differ in it
        authority = _builder(name, name, ca.public_key(), CA_DAYS, authority=True).sign(ca, hashes.SHA384())
        made = _pair(base / "ca.crt", authority, ca)
    key = ec.generate_private_key(ec.SECP384R1())
    above = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer = authority.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value
    days = min(days, days_left(authority))
    server = (
        _builder(hosts[0][:64], str(issuer), key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca, hashes.SHA384())
    )
    for old, new in renamed.items():
        old.rename(new)
    return made + _pair(base / "server.pem", server, key)


def _site(base: Path, site: str) -> list[Path]:
    """A key pair in the form that Flower's nodes read: ECDSA on P-384, OpenSSH."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return [_write(base / site, private, private=True), _write(base / f"{site}.pub", public + f" {site}\n".encode())]


def _builder(
    subject: str, issuer: str, public: ec.EllipticCurvePublicKey, days: int, *, authority: bool = False
) -> x509.CertificateBuilder:
    """What an authority and a server have in their certificates alike."""
    now = datetime.now(UTC)
    uses = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign encipher_only decipher_only"
    allowed = ("key_cert_sign", "crl_sign") if authority else ("digital_signature",)
    named = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(named[0])
        .issuer_name(named[1])
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of machines differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.KeyUsage(**{use: use in allowed for use in uses.split()}), critical=True)
    )


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,250}[A-Za-z0-9])?", host):
        raise InputError(
            f"{host!r} is neither a host name nor an IP address. Give what sites connect to, without scheme and port, for example fl.example.org."
        )
    return x509.DNSName(host)


def _pair(path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> list[Path]:
    """Write a certificate, and its private key beside it."""
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return [_write(path, certificate.public_bytes(pem)), _write(path.with_suffix(".key"), private, private=True)]


def _write(path: Path, content: bytes, private: bool = False) -> Path:
    """Write a new file; a private one is never readable by others, not even while it is written."""
    with open_new(path, PRIVATE if private else 0o644) as file:
        file.write(content)
    return path
