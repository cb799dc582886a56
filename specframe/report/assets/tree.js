// Draws one step's draft tree: left to right, what was emitted along the top, no two nodes on one
// place. Texts reach the page as text nodes only, so that no token can be markup.

const BOX = { width: 132, height: 40, reason: 16, right: 30, below: 8, margin: 12 };

// A token as one can see it: spaces and line ends shown.
function visible(text) {
  if (text === "") return "∅";
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
}

function probability(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 0.0995) return value.toFixed(2);
  if (value >= 0.001) return value.toFixed(3);
  return value === 0 ? "0" : value.toExponential(0);
}

// The nodes of a step and the token that the target added, as the page speaks of them.
function nodesOf(step, strings) {
  const onPath = new Set(step.a);
  const nodes = step.t.map((text, id) => {
    const why = step.w[id] < 0 ? null : strings[step.w[id]];
    return {
      id, why, text: strings[text], parent: step.p[id], target: step.q[id], softmax: step.x?.[id], draft: step.d[id],
      source: step.s[id] < 0 ? null : strings[step.s[id]],
      kind: kindOf(id, why, onPath), children: [],
    };
  });
  if (step.e.length > step.k) nodes.push(addedNode(step, strings, nodes));
  for (const node of nodes) if (node.parent >= 0) nodes[node.parent].children.push(node);
  return nodes;
}

function kindOf(id, why, onPath) {
  if (id === 0) return "root";
  if (onPath.has(id)) return "accepted";
  return why === "not reached" ? "unreached" : "rejected";
}

// The target's own token at the end of the path: it corrects a rejected guess, or is a bonus.
function addedNode(step, strings, nodes) {
  const end = step.a.length ? step.a[step.a.length - 1] : 0;
  const guessed = nodes.some((node) => node.parent === end);
  return {
    id: nodes.length, text: strings[step.e[step.e.length - 1]], parent: end, target: null,
    draft: null, source: null, kind: guessed ? "corrected" : "bonus", children: [],
    why: guessed ? "the target's own token here, in place of the rejected guesses"
      : "the target's own token after the last guess",
  };
}

// Columns by depth; each leaf has a row of its own and a parent stands in its first child's row.
function layOut(nodes) {
  const first = { accepted: 0, corrected: 0, bonus: 0, rejected: 1, unreached: 2 };
  let rows = 0;
  const pending = [[nodes[0], 0]];
  while (pending.length) {
    const [node, depth] = pending.pop();
    node.depth = depth;
    node.row = rows;
    if (!node.children.length) rows += 1;
    node.children.sort((a, b) => first[a.kind] - first[b.kind] || a.id - b.id);
    for (const child of [...node.children].reverse()) pending.push([child, depth + 1]);
  }
  const depth = Math.max(...nodes.map((node) => node.depth)) + 1;
  return {
    width: 2 * BOX.margin + depth * (BOX.width + BOX.right) - BOX.right,
    height: stack(nodes, rows) + BOX.margin,
  };
}

// A rejected node says why on a line of its own, so its row is higher. Returns where rows end.
function stack(nodes, rows) {
  const heights = new Array(rows).fill(BOX.height);
  for (const node of nodes) {
    node.height = BOX.height + (node.kind === "rejected" && node.why ? BOX.reason : 0);
    heights[node.row] = Math.max(heights[node.row], node.height);
  }
  const tops = [BOX.margin];
  heights.forEach((height, row) => { tops[row + 1] = tops[row] + height + BOX.below; });
  for (const node of nodes) node.top = tops[node.row];
  return tops[rows] - BOX.below;
}

const leftOf = (node) => BOX.margin + node.depth * (BOX.width + BOX.right);

function edge(parent, child) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const [x, y] = [leftOf(parent) + BOX.width, parent.top + BOX.height / 2];
  const [right, down] = [leftOf(child), child.top + BOX.height / 2];
  const middle = (x + right) / 2;
  path.setAttribute("d", `M${x} ${y}C${middle} ${y} ${middle} ${down} ${right} ${down}`);
  path.setAttribute("class", child.kind);
  return path;
}

function box(node) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = `node ${node.kind}`;
  button.dataset.node = node.id;
  button.tabIndex = node.id === 0 ? 0 : -1;
  button.style.cssText = `left:${leftOf(node)}px;top:${node.top}px;width:${BOX.width}px;height:${node.height}px`;
  const [token, below] = [document.createElement("b"), document.createElement("span")];
  token.textContent = visible(node.text);
  below.textContent = caption(node);
  button.append(token, below);
  if (node.height > BOX.height) {
    const reason = document.createElement("span");
    reason.className = "reason";
    reason.textContent = node.why;
    button.append(reason);
  }
  button.setAttribute("aria-label", `${node.text}, ${inWords(node)}`);
  return button;
}

// Under a token: both probabilities, target's first.
function caption(node) {
  if (node.kind === "root") return "root";
  if (node.kind === "corrected" || node.kind === "bonus") return node.kind;
  return `t ${probability(node.softmax ?? node.target)}  d ${probability(node.draft)}`;
}

function inWords(node) {
  if (node.kind === "root") return "the root: the last token before this step";
  if (node.kind === "corrected" || node.kind === "bonus") return `${node.kind}: ${node.why}`;
  const state = { accepted: "accepted", rejected: "rejected", unreached: "not reached" }[node.kind];
  const reason = node.kind === "rejected" && node.why ? `, ${node.why}` : "";
  const greedy = node.softmax === undefined || node.softmax === null ? ""
    : ` (greedy; ${probability(node.softmax)} in its softmax)`;
  const chances = `target ${probability(node.target)}${greedy}, draft ${probability(node.draft)}`;
  return `${state}${reason}; ${chances}${node.source ? `; from ${node.source}` : ""}`;
}

// Puts the tree on the sheet; returns its nodes in reading order and its size.
function drawTree(sheet, step, strings) {
  const nodes = nodesOf(step, strings);
  const size = layOut(nodes);
  const lines = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  lines.setAttribute("width", size.width);
  lines.setAttribute("height", size.height);
  lines.setAttribute("aria-hidden", "true");
  // What was rejected lies beneath what was kept.
  const order = { accepted: 2, corrected: 2, bonus: 2, rejected: 1, unreached: 0 };
  const drafted = nodes.filter((node) => node.parent >= 0);
  drafted.sort((a, b) => order[a.kind] - order[b.kind]);
  lines.append(...drafted.map((node) => edge(nodes[node.parent], node)));
  const shown = [...nodes].sort((a, b) => a.row - b.row || a.depth - b.depth);
  sheet.replaceChildren(lines, ...shown.map(box));
  return { nodes, shown, size };
}
