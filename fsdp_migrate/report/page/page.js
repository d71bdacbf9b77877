"use strict";
// Tables are sorted by their heads and searched by a box above them. Without this script they stand as they are.
for (const table of document.querySelectorAll("table.data")) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  if (rows.length > 1) {
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(body, rows, heads, column));
    });
  }
  if (rows.length > 10) {
    addFilter(table, rows);
  }
}

function sort(body, rows, heads, column) {
  const falling = heads[column].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", falling ? "descending" : "ascending");
  const inOrder = new Intl.Collator("en", { numeric: true }).compare;
  const key = (row) => row.cells[column].dataset.key;
  const sorted = rows.slice().sort((one, other) => {
    const numbers = [key(one), key(other)].map((each) => (each === undefined ? NaN : Number(each)));
    const known = numbers.map((each) => !Number.isNaN(each));
    if (known[0] !== known[1]) {
      return known[0] ? -1 : 1; // what is no number is last, however one sorts
    }
    const order = known[0]
      ? numbers[0] - numbers[1]
      : inOrder(one.cells[column].textContent, other.cells[column].textContent);
    return falling ? -order : order;
  });
  body.append(...sorted);
}

function addFilter(table, rows) {
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("output");
  const bar = document.createElement("div");
  bar.className = "filter";
  input.type = "search";
  input.autocomplete = "off";
  label.append("Only rows with ", input);
  count.setAttribute("aria-live", "polite");
  bar.append(label, count);
  table.parentElement.before(bar);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
  });
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
  }
}
addEventListener("hashchange", openTarget);
openTarget();

// What is folded is printed too, but for units that are alike.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open], .tree details)")];
  folded.forEach((each) => (each.open = true));
});
addEventListener("afterprint", () => folded.forEach((each) => (each.open = false)));
