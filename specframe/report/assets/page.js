// The report's own moves: dark or light, which view, tables that sort, dots that find their row.

const byId = (id) => document.getElementById(id);

// Dark or light: as the system says until the button is used; kept where the browser lets us.
function startTheme() {
  const root = document.documentElement;
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try { return localStorage.getItem("specframe-theme"); } catch { return null; }
  };
  const show = () => { root.dataset.theme = kept() ?? (wish.matches ? "dark" : "light"); };
  show();
  wish.addEventListener("change", show);
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("specframe-theme", root.dataset.theme); } catch { /* a file: page */ }
    document.dispatchEvent(new Event("theme"));
  });
}

// Which of the two views stands in the address; `opened` is told when the trees come up.
function startViews(opened) {
  const show = () => {
    const trees = byId("trees");
    const wanted = trees !== null && location.hash.startsWith("#trees");
    byId("report").hidden = wanted;
    if (trees) trees.hidden = !wanted;
    for (const link of document.querySelectorAll(".view")) {
      const here = (link.hash === "#trees") === wanted;
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (wanted) opened();
    else document.querySelector(location.hash || null)?.scrollIntoView?.();
  };
  addEventListener("hashchange", show);
  show();
}

// A cell's value: a number where it is one, nothing last.
function valueOf(row, column) {
  const held = row.cells[column].dataset.value;
  if (held === "") return null;
  return Number.isNaN(Number(held)) ? held : Number(held);
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), undefined, { numeric: true });
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  rows.sort((a, b) => {
    const [one, other] = [valueOf(a, column), valueOf(b, column)];
    if (one === null || other === null) return (one === null) - (other === null);
    return direction * compare(one, other);
  });
  body.append(...rows);
}

function startTables() {
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        // Numbers are first asked for their largest, words for their first.
        const first = head.classList.contains("number") ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        const now = before === first ? other : first;
        for (const one of heads) one.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", now);
        sortTable(table, column, now === "ascending" ? 1 : -1);
      });
    });
  }
}

// A dot of a picture lights its row; a click leads to its reason.
function startDots() {
  const rows = document.querySelectorAll('[data-name="configurations"] tbody tr');
  for (const dot of document.querySelectorAll('g[id*="dot-"]')) {
    const number = dot.id.slice(dot.id.lastIndexOf("-") + 1);
    const row = [...rows].find((one) => one.cells[0].textContent.trim() === number);
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = row ? [...row.cells].slice(1, 5).map((one) => one.innerText).join("  ") : number;
    dot.append(title);
    dot.addEventListener("mouseenter", () => row?.classList.add("lit"));
    dot.addEventListener("mouseleave", () => row?.classList.remove("lit"));
    dot.addEventListener("click", () => { location.hash = `why-${number}`; });
  }
}

startTheme();
startTables();
startDots();
