// Saves what the page shows: pictures and trees as SVG and PNG, tables as CSV, Markdown and LaTeX.

const SVG = "http://www.w3.org/2000/svg";
const FACE = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const PIXELS = 2; // of a PNG, for each pixel of the page

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// The colours that stand behind the names of the style, so that a file needs no style sheet.
function inColours(text) {
  const style = getComputedStyle(document.documentElement);
  return text.replace(/var\(--([\w-]+)\)/g, (_, name) => style.getPropertyValue(`--${name}`).trim());
}

// A picture of the page as the text of a file of its own.
function pictureFile(svg) {
  const copy = svg.cloneNode(true);
  const [, , width, height] = copy.getAttribute("viewBox").split(/\s+/).map(Number);
  return svgFile(copy, width, height);
}

function svgFile(svg, width, height) {
  const ground = document.createElementNS(SVG, "rect");
  for (const [key, value] of Object.entries({ width, height, fill: "var(--page)" })) ground.setAttribute(key, value);
  svg.prepend(ground);
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height, "font-family": FACE })) svg.setAttribute(key, value);
  for (const text of svg.querySelectorAll("text")) text.style.fontFamily = FACE;
  return inColours(new XMLSerializer().serializeToString(svg));
}

// The tree of the step at hand as the text of a file.
function treeFile() {
  const { nodes, size } = state.tree;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  for (const path of byId("sheet").querySelectorAll("path")) {
    const { stroke, strokeWidth } = getComputedStyle(path);
    const copy = path.cloneNode();
    copy.setAttribute("style", `fill: none; stroke: ${stroke}; stroke-width: ${strokeWidth}`);
    svg.append(copy);
  }
  for (const node of nodes) svg.append(...nodeParts(node));
  return svgFile(svg, size.width, size.height);
}

function nodeParts(node) {
  const style = getComputedStyle(boxOf(node.id));
  const rect = document.createElementNS(SVG, "rect");
  const place = { x: leftOf(node), y: node.top, width: BOX.width, height: node.height, rx: 6 };
  for (const [key, value] of Object.entries(place)) rect.setAttribute(key, value);
  const dashes = style.borderTopStyle === "dashed" ? "; stroke-dasharray: 4 3" : "";
  rect.setAttribute("style", `fill: ${style.backgroundColor}; stroke: ${style.borderTopColor}${dashes}`);
  const lines = [[visible(node.text), 15, 13], [caption(node), 31, 11]];
  if (node.height > BOX.height) lines.push([node.why, 47, 11]);
  return [rect, ...lines.map(([text, down, size]) => {
    const label = document.createElementNS(SVG, "text");
    const most = Math.floor((BOX.width - 12) / (0.56 * size));
    label.textContent = text.length > most ? `${text.slice(0, most - 1)}…` : text;
    label.setAttribute("x", leftOf(node) + 7);
    label.setAttribute("y", node.top + down);
    label.setAttribute("style", `font-size: ${size}px; fill: ${style.color}`);
    return label;
  })];
}

// Draws the text of an SVG file and saves what came out.
function savePng(name, text) {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [PIXELS * image.width, PIXELS * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, blob), "image/png");
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

// Headings and rows of a table as they stand; a cell's smaller text follows in brackets.
function rowsOf(table) {
  const said = (cell) => {
    const note = cell.querySelector("small")?.textContent;
    const own = (cell.querySelector("button") ?? cell.firstChild)?.textContent.trim() ?? "";
    return note ? `${own} (${note})` : own;
  };
  return [...table.rows].map((row) => [...row.cells].map(said));
}

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csv(rows) {
  return rows.map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}

function markdown(rows, numbers) {
  const line = (cells) => `| ${cells.map((text) => text.replaceAll("|", "\\|").replaceAll("\n", " ")).join(" | ")} |`;
  const rule = `|${numbers.map((number) => (number ? "---:" : "---")).join("|")}|`;
  return [line(rows[0]), rule, ...rows.slice(1).map(line)].join("\n") + "\n";
}

const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "…": "\\ldots{}" };

function latex(rows, numbers) {
  const escaped = (text) => text.replace(/[\\~^…&%$#_{}]/g, (mark) => LATEX[mark] ?? `\\${mark}`);
  const line = (cells) => `${cells.map(escaped).join(" & ")} \\\\`;
  const columns = numbers.map((number) => (number ? "r" : "l")).join("");
  const body = [line(rows[0]), "\\hline", ...rows.slice(1).map(line)].join("\n");
  return `\\begin{tabular}{${columns}}\n${body}\n\\end{tabular}\n`;
}

function buttons(named) {
  const line = document.createElement("p");
  line.className = "save";
  line.append("save as ");
  for (const [name, action] of Object.entries(named)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", action);
    line.append(button, " ");
  }
  return line;
}

function pictureButtons(name, text) {
  return buttons({
    SVG: () => save(`${name}.svg`, new Blob([text()], { type: "image/svg+xml" })),
    PNG: () => savePng(`${name}.png`, text()),
  });
}

function startSaving() {
  for (const figure of document.querySelectorAll("figure")) {
    const shown = () => [...figure.querySelectorAll("svg")].find((svg) => svg.clientWidth > 0);
    figure.append(pictureButtons(figure.dataset.name, () => pictureFile(shown())));
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    const name = table.dataset.name;
    const numbers = [...table.tHead.rows[0].cells].map((head) => head.classList.contains("number"));
    const text = (made, ending) => () => save(`${name}.${ending}`, new Blob([made(rowsOf(table), numbers)], { type: "text/plain" }));
    table.parentElement.after(buttons({ CSV: text(csv, "csv"), Markdown: text(markdown, "md"), LaTeX: text(latex, "tex") }));
  }
  document.querySelector("#trees .bar")?.append(pictureButtons("tree", treeFile));
}

startSaving();
