// Tables that sort: a button in each header, missing values last in both directions.
"use strict";

(() => {
  const value = (row, column) => {
    const cell = row.cells[column];
    const given = cell.dataset.sort;
    if (given === undefined) return cell.textContent.trim();
    return given === "" ? null : Number(given);
  };

  const compare = (first, second) =>
    typeof first === "number" && typeof second === "number"
      ? first - second
      : String(first).localeCompare(String(second), "en", { numeric: true });

  const sort = (table, column, sign) => {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, key: value(row, column) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
      return sign * compare(a.key, b.key);
    });
    body.append(...rows.map(({ row }) => row));
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = Array.from(table.tHead.rows[0].cells);
    headers.forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const ascending = header.getAttribute("aria-sort") !== "ascending";
        headers.forEach((other) => other.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, column, ascending ? 1 : -1);
      });
    });
  }
})();
