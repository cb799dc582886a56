// The answer as tokens that know their step. Spans are made once an answer; a step only moves marks.

// Puts an answer's tokens on the page; returns one span a step, prefill's token first.
function layText(place, answer, strings) {
  const groups = [answer.first, ...answer.steps.map((step) => step.e)];
  const spans = groups.map((tokens, index) => {
    const group = document.createElement("span");
    group.className = "step later";
    tokens.forEach((text, rank) => group.append(token(strings[text], index - 1, rank, answer)));
    return group;
  });
  place.replaceChildren(...spans);
  return spans;
}

function token(text, step, rank, answer) {
  const span = document.createElement("span");
  span.className = `token ${tokenKind(step, rank, answer)}`;
  span.textContent = text === "" ? "∅" : text;
  span.dataset.step = step;
  span.dataset.rank = rank;
  span.setAttribute("role", "button");
  span.tabIndex = -1;
  return span;
}

function tokenKind(index, rank, answer) {
  if (index < 0) return "first";
  const step = answer.steps[index];
  if (rank < step.k) return "accepted";
  const end = step.a.length ? step.a[step.a.length - 1] : 0;
  return step.p.includes(end) ? "corrected" : "bonus";
}

// What a token's step was, in a few words.
function tokenSays(index, rank, answer) {
  if (index < 0) return `from prefill, ${milliseconds(answer.prefill_ms)}; before the first step`;
  const step = answer.steps[index];
  const kind = tokenKind(index, rank, answer);
  const of = step.e.length > 1 ? `, token ${rank + 1} of ${step.e.length}` : "";
  return `step ${index + 1}: ${kind}${of}; ${milliseconds(total(step.m))}`;
}

const total = (numbers) => numbers.reduce((sum, one) => sum + (one ?? 0), 0);
const milliseconds = (ms) => (ms === null || ms === undefined ? "–" : `${ms.toFixed(1)} ms`);

// Moves the marks from one step to another; touches only the steps between.
function markText(spans, from, to) {
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  for (let index = Math.max(low, -1); index <= high; index += 1) {
    spans[index + 1].classList.toggle("later", index > to);
  }
  spans[from + 1]?.classList.remove("now");
  for (const one of spans[from + 1]?.children ?? []) one.tabIndex = -1;
  spans[to + 1].classList.add("now");
  const last = spans[to + 1].lastElementChild;
  if (last) last.tabIndex = 0;
}
