"use strict";
const all = (where, what) => [...where.querySelectorAll(what)];
const number = text => { const found = text.replace("−", "-").match(/-?[\d.,]+/); return found ? parseFloat(found[0].replace(/,/g, "")) : NaN; };
const opened = () => { for (let e = document.getElementById(location.hash.slice(1)); e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true; };
addEventListener("hashchange", opened);
addEventListener("beforeprint", () => all(document, "details").forEach(e => { e.open = true; }));
opened();
for (const box of all(document, "[data-switch]")) { // a method in all figures and tables at once
  box.addEventListener("change", () => all(document, `[data-m="${box.dataset.switch}"]`).forEach(e => { e.classList.toggle("off", !box.checked); }));
}
for (const table of all(document, "table.numbers, table.lines")) {
  const rows = all(table, "tbody tr");
  if (rows.length < 3) continue;
  all(table, "thead th").forEach((head, column) => { // sort by a column, and the other way round
    const button = document.createElement("button");
    button.className = "sort"; button.type = "button"; button.ariaLabel = `Sort by ${head.textContent.trim()}`;
    head.append(button);
    button.addEventListener("click", () => {
      const way = head.ariaSort === "descending" ? "ascending" : "descending";
      all(table, "thead th").forEach(e => e.removeAttribute("aria-sort"));
      head.ariaSort = way;
      const key = row => row.cells[column].textContent.trim();
      const sign = way === "ascending" ? 1 : -1;
      const ahead = (a, b) => { // what is no number comes last, either way
        const [x, y] = [number(key(a)), number(key(b))];
        return column && isNaN(x) !== isNaN(y) ? isNaN(x) - isNaN(y) : sign * (column && !isNaN(x - y) ? x - y : key(a).localeCompare(key(b)));
      };
      rows.sort(ahead).forEach(row => row.parentElement.append(row));
    });
  });
  if (rows.length > 8) { // show some rows
    const field = document.createElement("input");
    field.type = "search"; field.placeholder = field.ariaLabel = "Filter rows"; field.className = "filter";
    field.addEventListener("input", () => rows.forEach(row => { row.hidden = !row.textContent.toLowerCase().includes(field.value.toLowerCase()); }));
    (table.closest(".scroll") || table).before(field);
  }
}
