for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.dataset.first || "ascending", other = first === "ascending" ? "descending" : "ascending";
      const way = head.getAttribute("aria-sort") === first ? other : first, sign = way === "ascending" ? 1 : -1;
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", way);
      const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (one, two) => {
        const a = key(one), b = key(two);
        if (a === "" || b === "") return (a === "") - (b === "");
        const numbers = !isNaN(a) && !isNaN(b);
        return sign * (numbers ? a - b : a.localeCompare(b));
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
