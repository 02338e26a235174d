// The table of a run: means with intervals, marks as in the report, sorted by a click, and a way to the pictures.

import { announce, el, svg } from "./common.js";
import { moved, partOf, runAddress, UNFILTERED } from "./runs_state.js";
import { arrow, breakable, digits, nothing, refill } from "./runs_parts.js";

const TRIAL = { passes: "good", weak: "weak", fails: "bad", blind: "bad" };
const UNSEEN = "no trial has seen this metric";

export function tableView(context) {
  const { id, table, change } = context;
  const node = el("div", { class: "runtable" });

  function show(state) {
    const part = partOf(table, state);
    if (!part.methods.length) {
      refill(node, el("div", { class: "card" }, nothing(`Nothing of ${part.name} is finished yet.`)));
      return;
    }
    const strange = part.methods.some((each) => each.degenerate);
    const head = el("tr", {},
      headOf("method", ["method"], null, part, state),
      part.metrics.map((metric) => [
        headOf(metric.name, titleOf(metric), trialOf(metric), part, state),
        several(part) && el("th", { scope: "col" }, "between seeds"),
      ]),
      strange && el("th", { scope: "col", class: "words" }, "degenerate maps"));
    const body = sorted(part, state).map((row) => el("tr", { class: part.methods[row].quiet ? "yardstick" : null },
      nameOf(part.methods[row]),
      part.metrics.map((metric, column) => [
        el("td", {}, cell(part, row, column, state)),
        several(part) && el("td", {}, deviation(part.cells[row][column], metric)),
      ]),
      strange && el("td", { class: "words" }, part.methods[row].degenerate)));
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": `Scores of ${part.name}` };
    refill(node,
      el("div", { class: "card" },
        el("div", region, el("table", {}, el("thead", {}, head), el("tbody", {}, body))),
        legend(part).map((words) => el("p", { class: "note" }, words))),
      worth(part), leftOut(part));
  }

  function headOf(name, words, below, part, state) {
    const onclick = () => sort(name, part, state);
    return el("th", { scope: "col", "aria-sort": state.sort === name ? state.way : null },
      el("button", { type: "button", dataset: { key: `sort ${name}` }, onclick }, words), below);
  }

  function sort(name, part, state) {
    const metric = part.metrics.find((each) => each.name === name);
    const first = metric?.up ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const way = state.sort === name && state.way === first ? other : first;
    announce(`Sorted by ${name}, ${way}`);
    change({ sort: name, way });
  }

  function cell(part, row, column, state) {
    const found = part.cells[row][column];
    if (!found) return "–";
    const [method, metric] = [part.methods[row], part.metrics[column]];
    const there = { ...UNFILTERED, view: "cell", method: method.name, metric: metric.name, page: "0", picture: "" };
    const mean = digits(found.mean, metric.digits);
    const [low, high] = [found.low, found.high].map((each) => digits(each, metric.digits));
    const between = found.low === null ? "" : `${low} to ${high}`;
    const words = [
      `${method.title}, ${metric.name}: ${mean}`, between && `95 % interval ${between}`, compared(found),
      found.mark && `shares with the metric: ${found.mark}`, "show its pictures",
    ];
    const properties = {
      href: runAddress(id, moved(state, there)), class: "score", dataset: { key: `cell ${row} ${column}` },
      "aria-label": words.filter(Boolean).join("; "),
    };
    return el("a", properties,
      star(found), found.best ? el("b", {}, mean) : mean, found.letters && el("sup", {}, found.letters),
      found.mark && el("sup", { title: `shared with the metric: ${found.mark}` }, "◆"),
      between && el("small", {}, between),
      whisker(found, metric),
      found.images < part.images && el("small", {}, `${found.images} of ${part.images} pictures`),
      found.paper !== null && el("small", {}, `paper ${digits(found.paper, metric.digits)}`));
  }

  return { node, show };
}

/** The rows in the order that is asked for; what has no score comes last. */
export function sorted(part, state) {
  const rows = part.methods.map((_, row) => row);
  const column = part.metrics.findIndex((each) => each.name === state.sort);
  const sign = state.way === "descending" ? -1 : 1;
  const title = (row) => part.methods[row].title;
  if (state.sort === "method") return rows.sort((a, b) => sign * title(a).localeCompare(title(b)));
  if (column < 0) return rows;
  const value = (row) => part.cells[row][column]?.mean ?? null;
  return rows.sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (one - other);
  });
}

function several(part) {
  return part.seeds.length > 1;
}

/** How far the means of single seeds lie apart. */
function deviation(found, metric) {
  return found && found.seed_sd !== null ? digits(found.seed_sd, metric.digits + 1) : "–";
}

function titleOf(metric) {
  return [`${arrow(metric)}\u00a0`, breakable(metric.name)];
}

function trialOf(metric) {
  const told = metric.trial?.verdict ?? "not tried";
  const word = el("span", { class: TRIAL[told] ?? null }, told);
  return el("small", { title: metric.trial?.text ?? UNSEEN }, "on trial: ", word);
}

function nameOf(method) {
  const small = method.reference && el("small", {}, "reference");
  return el("th", { scope: "row", title: method.spec }, breakable(method.title), small);
}

function compared(found) {
  if (!found.word) return "";
  if (found.word === "not told apart") return "not told apart from random";
  return `${found.word} than random${found.p === null ? "" : `, p = ${found.p.toPrecision(2)}`}`;
}

function star(found) {
  if (!found.word) return null;
  const sign = { better: found.stars, worse: `▾${found.stars}` }[found.word] ?? "≈";
  const kind = { better: "up", worse: "down" }[found.word] ?? null;
  return el("sup", { class: kind, title: compared(found) }, sign, " ");
}

/** A line from one end of the interval to the other, a dot for the mean, a tick for chance. */
function whisker(found, metric) {
  if (!metric.span || metric.span[0] === metric.span[1]) return null;
  const [low, high] = metric.span;
  const at = (value) => (4 + (96 * (Math.min(Math.max(value, low), high) - low)) / (high - low)).toFixed(1);
  const line = (kind, from, to, y1, y2) => svg("line", { class: kind, x1: at(from), x2: at(to), y1, y2 });
  return svg("svg", { class: "whisker", viewBox: "0 0 104 10", "aria-hidden": "true" },
    found.low !== null && line("reach", found.low, found.high, 5, 5),
    metric.chance !== null && line("tick", metric.chance, metric.chance, 0, 10),
    svg("circle", { class: "dot", cx: at(found.mean), cy: 5, r: 3 }));
}

function legend(part) {
  const all = part.cells.flat().filter(Boolean);
  const lines = [
    "Mean over the pictures, its 95 % bootstrap interval, and both drawn; the thin line is random’s mean. "
      + "Bold: the best. Arrow up: higher is better. A click on a head sorts, on a score shows its pictures.",
    "Red stars: better than random (* 5 %, ** 1 %, *** 0.1 %, Holm-corrected randomisation tests); "
      + "≈: not told apart from it; blue ▾: worse than it. "
      + "Methods that share a letter are not told apart by their mean ranks.",
  ];
  if (all.some((each) => each.mark)) {
    lines.push("◆ The method itself asks the model about pictures changed in the way that the metric changes them.");
  }
  const printed = all.some((each) => each.paper !== null);
  if (printed) lines.push("“Paper” is the printed number, in the metric’s own unit.");
  if (several(part)) {
    lines.push(`Every picture has the mean of its scores over ${part.seeds.length} seeds; “between seeds” is the `
      + "standard deviation of the means that each seed gives. Maps and what a click shows of them are those of "
      + `seed ${part.seeds[0]}.`);
  }
  return lines;
}

/** Marks and flags in words, and what could not be tested. */
function worth(part) {
  if (!part.flags.length && !part.notes.length) return null;
  const where = (each) => [each.method, each.metric].filter(Boolean).join(", ") || "all";
  const row = (each) => el("li", {}, el("b", {}, each.kind), el("span", {}, `${where(each)}: ${each.text}`));
  return el("details", { class: "card worth" },
    el("summary", {}, `Worth knowing (${part.flags.length})`),
    el("ul", {}, part.flags.map(row)),
    part.notes.map((each) => el("p", { class: "note" }, each)));
}

/** Pictures that could not be read, or of which the model was not sure enough. */
function leftOut(part) {
  if (!part.left_out_count) return null;
  const more = part.left_out_count - part.left_out.length;
  return el("details", { class: "card worth" },
    el("summary", {}, `${part.left_out_count} pictures are left out`),
    el("ul", {}, part.left_out.map((each) => el("li", {}, el("b", {}, each.name), el("span", {}, each.why)))),
    more > 0 && el("p", { class: "note" }, `And ${more} more.`));
}
