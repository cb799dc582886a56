// The viewer's state and moves: run, answer, step; keys, clicks, zoom. Only the current step is drawn.

const state = { runs: null, run: 0, answer: 0, step: 0, spans: [], tree: null, scale: "fit", room: null };

const SMALLEST = 0.72; // scale to which a tree is fitted at most; what does not fit is scrolled

const theRun = () => state.runs[state.run];
const theAnswer = () => theRun().answers[state.answer];
const theStep = () => theAnswer().steps[state.step];

function openViewer() {
  if (state.runs === null) {
    state.runs = JSON.parse(byId("traces").textContent);
    fill(byId("run"), state.runs.map((run) => run.name));
    byId("run").parentElement.hidden = state.runs.length < 2;
    const pane = byId("pane");
    state.room = { width: pane.clientWidth, height: pane.clientHeight };
    listen();
    const [, run, answer, step] = location.hash.split("-").map(Number);
    showRun(within(run, state.runs.length));
    showAnswer(within(answer - 1, theRun().answers.length), step - 1);
  } else {
    placeTree();
  }
}

const within = (number, count) => Math.min(Math.max(Number.isInteger(number) ? number : 0, 0), count - 1);

function fill(select, names) {
  select.replaceChildren(...names.map((name, index) => new Option(name, index)));
}

function showRun(index) {
  state.run = index;
  byId("run").value = index;
  fill(byId("answer"), theRun().answers.map((one, rank) =>
    [rank + 1, one.category, one.id].filter((part) => part !== "").join("  ")));
  showAnswer(0);
}

function showAnswer(index, step = 0) {
  state.answer = index;
  const answer = theAnswer();
  byId("answer").value = index;
  byId("prompt").textContent = answer.prompt;
  byId("slider").max = answer.steps.length - 1;
  state.spans = layText(byId("text"), answer, theRun().strings);
  state.step = -1;
  markText(state.spans, -1, -1);
  showStep(within(step, answer.steps.length));
  drawStrip();
}

function showStep(index) {
  const before = state.step;
  state.step = within(index, theAnswer().steps.length);
  const count = theAnswer().steps.length;
  byId("slider").value = state.step;
  byId("slider").setAttribute("aria-valuetext", `step ${state.step + 1} of ${count}`);
  byId("place").textContent = `step ${state.step + 1} of ${count}`;
  byId("said").textContent = sentence();
  const held = byId("text").contains(document.activeElement);
  markText(state.spans, before, state.step);
  state.spans[state.step + 1].lastElementChild?.scrollIntoView({ block: "nearest" });
  if (held) state.spans[state.step + 1].lastElementChild?.focus({ preventScroll: true });
  const inTree = byId("sheet").contains(document.activeElement);
  byId("pane").scrollTo(0, 0); // before the new tree: nothing is laid out twice
  state.tree = drawTree(byId("sheet"), theStep(), theRun().strings);
  placeTree();
  if (inTree) boxOf(0).focus({ preventScroll: true });
  tell(state.tree.nodes[0]);
  drawTimes();
  markStrip();
  keepPlace();
}

// The place in the address, once the steps come to rest.
function keepPlace() {
  clearTimeout(state.keeping);
  state.keeping = setTimeout(() => {
    const place = [state.run, state.answer + 1, state.step + 1].join("-");
    if (!byId("trees").hidden) history.replaceState(null, "", `#trees-${place}`);
  }, 150);
}

// The step in one sentence.
function sentence() {
  const step = theStep();
  const drafted = step.t.length - 1;
  const added = step.e.length > step.k ? step.e[step.e.length - 1] : null;
  const kind = added === null ? null : tokenKind(state.step, step.k, theAnswer());
  const told = drafted ? `${step.k} of ${drafted} drafted tokens accepted` : "nothing was drafted";
  const end = { corrected: ", corrected to ", bonus: ", then " }[kind] ?? "";
  const token = added === null ? "" : `“${visible(theRun().strings[added])}”`;
  const extra = step.n > step.t.length ? `; ${step.n} rows verified` : "";
  const cut = step.c ? "; cut by a stop" : "";
  const over = state.step === theAnswer().steps.length - 1 && theAnswer().reason
    ? `; the answer ends: ${theAnswer().reason}` : "";
  return `${told}${end}${token}${extra}${cut}${over}.`;
}

// What is known of a node, under the tree.
function tell(node) {
  const token = document.createElement("code");
  token.textContent = visible(node.text);
  byId("node").replaceChildren(token, ` ${inWords(node)}`);
}

const boxOf = (id) => byId("sheet").querySelector(`[data-node="${id}"]`);

// Zoom: a number, or as much of the tree as the pane takes, never too small to read.
function placeTree() {
  if (!state.tree) return;
  const { width, height } = state.tree.size;
  const whole = Math.min(1, state.room.width / width, state.room.height / height);
  const scale = state.scale === "fit" ? Math.max(SMALLEST, whole) : state.scale;
  const sheet = byId("sheet");
  sheet.style.transform = `scale(${scale})`;
  sheet.style.width = `${width}px`;
  sheet.style.height = `${height}px`;
  // A scaled element keeps its place in the flow, so what it no longer needs is taken back.
  sheet.style.marginRight = `${width * (scale - 1)}px`;
  sheet.style.marginBottom = `${height * (scale - 1)}px`;
  state.shown = scale;
}

function zoom(factor) {
  state.scale = factor === 0 ? "fit" : Math.min(3, Math.max(0.3, state.shown * factor));
  placeTree();
}

// Where the time of the step went.
function drawTimes() {
  const { m } = theStep();
  const sum = total(m);
  const whole = document.createElement("span");
  whole.className = "whole";
  const parts = theRun().phases.map((phase, index) => {
    const colour = `var(--phase${index})`;
    const piece = document.createElement("i");
    piece.style.cssText = `width:${sum ? (100 * (m[index] ?? 0)) / sum : 0}%;background:${colour}`;
    whole.append(piece);
    const [told, swatch, number] = ["span", "i", "em"].map((tag) => document.createElement(tag));
    swatch.className = "swatch";
    swatch.style.background = colour;
    number.textContent = milliseconds(m[index]);
    told.append(swatch, `${phase} `, number);
    return told;
  });
  const all = document.createElement("span");
  all.textContent = `step ${milliseconds(sum)}`;
  byId("times").replaceChildren(whole, ...parts, all);
}

// The answer at a glance: a bar a step, as high as it emitted tokens, accepted ones in green.
function drawStrip() {
  const canvas = byId("strip");
  const answer = theAnswer();
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(36 * ratio);
  const style = getComputedStyle(document.documentElement);
  const [good, plain] = ["--good", "--muted"].map((name) => style.getPropertyValue(name));
  const most = answer.steps.reduce((top, step) => Math.max(top, step.e.length), 1);
  const [wide, unit] = [canvas.width / answer.steps.length, (canvas.height - 3 * ratio) / most];
  const pen = canvas.getContext("2d");
  answer.steps.forEach((step, index) => {
    const gap = wide > 4 * ratio ? ratio : 0;
    const kept = step.k * unit;
    pen.fillStyle = good;
    pen.fillRect(index * wide, canvas.height - kept, wide - gap, kept);
    pen.fillStyle = plain;
    const rest = (step.e.length - step.k) * unit;
    pen.fillRect(index * wide, canvas.height - kept - rest, wide - gap, rest);
  });
  markStrip();
}

// The current step's place on the strip, a line in the page above the picture.
function markStrip() {
  const share = (state.step + 0.5) / theAnswer().steps.length;
  byId("strip").style.background =
    `linear-gradient(90deg, transparent calc(${100 * share}% - 1.5px), var(--fixed) 0 calc(${100 * share}% + 1.5px), transparent 0)`;
}

function moveAnswer(by) {
  showAnswer(within(state.answer + by, theRun().answers.length));
}

// Up and down among the nodes, in the order in which they stand.
function moveNode(by) {
  const { shown } = state.tree;
  const held = shown.findIndex((node) => boxOf(node.id) === document.activeElement);
  const node = shown[held < 0 ? 0 : within(held + by, shown.length)];
  boxOf(node.id).focus();
}

const KEYS = {
  ArrowRight: () => showStep(state.step + 1),
  ArrowLeft: () => showStep(state.step - 1),
  PageDown: () => showStep(state.step + 10),
  PageUp: () => showStep(state.step - 10),
  Home: () => showStep(0),
  End: () => showStep(theAnswer().steps.length - 1),
  ArrowDown: () => moveNode(1),
  ArrowUp: () => moveNode(-1),
  n: () => moveAnswer(1),
  p: () => moveAnswer(-1),
  "+": () => zoom(1.2),
  "=": () => zoom(1.2),
  "-": () => zoom(1 / 1.2),
  0: () => zoom(0),
};

function pressed(event) {
  if (byId("trees").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = event.target;
  if (at.tagName === "SELECT") return;
  const onToken = at.classList?.contains("token");
  if ((event.key === "Enter" || event.key === " ") && onToken) {
    showStep(Number(at.dataset.step));
  } else if (event.key in KEYS) {
    KEYS[event.key]();
  } else {
    return;
  }
  event.preventDefault();
}

// Hovering or focusing a token says which step made it.
function hint(event, on) {
  const token = event.target.closest?.(".token");
  if (!token) return;
  token.parentElement.classList.toggle("hint", on);
  const tip = byId("tip");
  tip.hidden = !on;
  if (!on) return;
  tip.textContent = tokenSays(Number(token.dataset.step), Number(token.dataset.rank), theAnswer());
  const place = token.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - tip.offsetWidth - 12);
  const above = place.top - tip.offsetHeight - 6;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 8 ? above : place.bottom + 6}px`;
}

function listen() {
  const click = (id, act) => byId(id).addEventListener("click", act);
  click("first", () => showStep(0));
  click("back", () => showStep(state.step - 1));
  click("next", () => showStep(state.step + 1));
  click("last", () => showStep(theAnswer().steps.length - 1));
  click("smaller", () => zoom(1 / 1.2));
  click("larger", () => zoom(1.2));
  click("fit", () => zoom(0));
  click("strip", (event) => {
    const share = event.offsetX / event.target.clientWidth;
    showStep(Math.floor(share * theAnswer().steps.length));
  });
  byId("slider").addEventListener("input", (event) => showStep(Number(event.target.value)));
  byId("run").addEventListener("change", (event) => showRun(Number(event.target.value)));
  byId("answer").addEventListener("change", (event) => showAnswer(Number(event.target.value)));
  const text = byId("text");
  text.addEventListener("click", (event) => {
    const token = event.target.closest(".token");
    if (token) showStep(Number(token.dataset.step));
  });
  for (const name of ["mouseover", "focusin"]) text.addEventListener(name, (event) => hint(event, true));
  for (const name of ["mouseout", "focusout"]) text.addEventListener(name, (event) => hint(event, false));
  const sheet = byId("sheet");
  for (const name of ["mouseover", "focusin"]) {
    sheet.addEventListener(name, (event) => {
      const found = event.target.closest(".node");
      if (found) tell(state.tree.nodes[Number(found.dataset.node)]);
    });
  }
  byId("pane").addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
  document.addEventListener("keydown", pressed);
  document.addEventListener("theme", drawStrip);
  new ResizeObserver(([pane]) => { state.room = pane.contentRect; placeTree(); }).observe(byId("pane"));
  addEventListener("resize", drawStrip);
}

startViews(openViewer);
