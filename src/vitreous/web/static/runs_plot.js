// Any metric against any other: every method a point with its intervals, or every picture a point.

import { announce, el, fill, number, svg } from "./common.js";
import { problem } from "./parts.js";
import {
  arrow, ask, chooser, digits, filterBar, filtersOf, methodOptions, metricOptions, moved, nothing, partOf,
  refill, runAddress, segments, UNFILTERED,
} from "./runs_parts.js";

// -- a scatter of points

const LEFT = 62, RIGHT = 18, TOP = 16, BOTTOM = 50;
const MOST_LINKS = 60; // more points than these are no stops of the tab key

/** About `count` round numbers from low to high; powers of ten on a logarithmic axis, their parts on a short one. */
export function ticks(low, highest, count = 5, log = false) {
  if (log) {
    const [first, last] = [Math.ceil(Math.log10(low)), Math.floor(Math.log10(highest))];
    const powers = Array.from({ length: last - first + 3 }, (_, i) => 10 ** (first - 1 + i));
    const result = last - first >= 2 ? powers : powers.flatMap((item) => [item, 2 * item, 5 * item]);
    return result.filter((item) => item >= low && item <= highest);
  }
  const rough = (highest - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((item) => item * power).find((item) => item >= 0.75 * rough) ?? rough;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from(
    { length: Math.floor(highest / step + 1e-9) - first + 1 },
    (_, i) => Number(((first + i) * step).toPrecision(12)),
  );
}

/** Where values lie on an axis, with a little room at both ends. */
function scaled(values, from, to, log) {
  const there = values.filter(Number.isFinite).map((value) => (log ? Math.log10(value) : value));
  let [low, highest] = there.length ? [Math.min(...there), Math.max(...there)] : [0, 1];
  const room = (highest - low || Math.abs(highest) || 1) * 0.06;
  [low, highest] = [low - room, highest + room];
  const at = (value) => from + (((log ? Math.log10(value) : value) - low) / (highest - low)) * (to - from);
  return { at, low: log ? 10 ** low : low, high: log ? 10 ** highest : highest };
}

/**
 * Draw points. Each is `{x, y, name, words, href, quiet, hollow, low: [x, y], high: [x, y]}`; `axes` are
 * `{x: {title, log}, y: …}`; `same`: both axes mean the same, have one scale, and the diagonal is drawn. The result
 * is an element; `onopen` is told of a chosen point.
 */
export function plot(points, axes, { width, same = false, labels = false, onopen }) {
  const height = Math.round(Math.min(560, Math.max(340, width * 0.62)));
  const horizontal = points.flatMap((item) => [item.x, item.low?.[0], item.high?.[0]]);
  const upwards = points.flatMap((item) => [item.y, item.low?.[1], item.high?.[1]]);
  const both = [...horizontal, ...upwards];
  const x = scaled(same ? both : horizontal, LEFT, width - RIGHT, axes.x.log);
  const y = scaled(same ? both : upwards, height - BOTTOM, TOP, axes.y.log);
  const tip = el("div", { class: "tip", hidden: true });
  const links = points.length <= MOST_LINKS;
  const marks = points.map((point, number) => mark(point, number));
  const hint = links ? "" : " Arrow keys walk through them, Enter opens one.";
  const words = `${axes.y.title} against ${axes.x.title}, ${points.length} points.${hint}`;
  const box = { viewBox: `0 0 ${width} ${height}`, class: "scatter", tabindex: links ? null : "0", role: "group" };
  const drawing = svg("svg", { ...box, "aria-label": words },
    grid(), same && diagonal(), svg("g", {}, points.map(reach)), svg("g", {}, marks),
    labels && svg("g", { class: "names", "aria-hidden": "true" }, named()));
  const order = points.map((_, number) => number).sort((a, b) => points[a].x - points[b].x);
  let current = -1;

  function mark(point, number) {
    const kind = `point${point.quiet ? " grey" : ""}${point.hollow ? " hollow" : ""}`;
    const place = { cx: x.at(point.x).toFixed(1), cy: y.at(point.y).toFixed(1), r: links ? 6 : 4 };
    const circle = svg("circle", { class: kind, ...place });
    if (!links) return circle;
    const looks = { onfocus: () => look(number), onblur: () => look(-1) };
    return svg("a", { href: point.href, "aria-label": `${point.name}: ${point.words}`, ...looks }, circle);
  }

  function reach(point) {
    if (!point.low) return "";
    const [left, right, down, up] = [x.at(point.low[0]), x.at(point.high[0]), y.at(point.low[1]), y.at(point.high[1])];
    const kind = "reach";
    return [
      Number.isFinite(left + right) && svg(
        "line",
        { class: kind, x1: left, x2: right, y1: y.at(point.y), y2: y.at(point.y) },
      ),
      Number.isFinite(down + up) && svg(
        "line",
        { class: kind, x1: x.at(point.x), x2: x.at(point.x), y1: down, y2: up },
      ),
    ].filter(Boolean);
  }

  /** Names beside their points, where they do not run into each other. */
  function named() {
    const taken = points.map((point) => [x.at(point.x) - 6, y.at(point.y) - 6, x.at(point.x) + 6, y.at(point.y) + 6]);
    return [...points].sort((a, b) => (a.quiet ?? false) - (b.quiet ?? false)).map((point) => {
      const [at, down, textWidth] = [x.at(point.x), y.at(point.y), point.name.length * 7.2];
      const places = [
        [at + 11, down - 5, "start"],
        [at - 11, down - 5, "end"],
        [at + 11, down + 15, "start"],
        [at - 11, down + 15, "end"],
      ];
      for (const [horizontal, line, anchor] of places) {
        const left = anchor === "start" ? horizontal : horizontal - textWidth;
        const box = [left, line - 11, left + textWidth, line + 3];
        const free = box[0] >= LEFT && box[2] <= width - 4 && !taken.some(
          (item) => box[0] < item[2] && box[2] > item[0] && box[1] < item[3] && box[3] > item[1],
        );
        if (free) {
          taken.push(box);
          return svg("text", { x: horizontal, y: line, "text-anchor": anchor }, point.name);
        }
      }
      return "";
    });
  }

  function grid() {
    const round = (value) => String(Number(value.toPrecision(6))).replace("-", "−");
    const [right, bottom] = [width - RIGHT, height - BOTTOM];
    const below = ticks(x.low, x.high, Math.max(4, width / 120), axes.x.log).map((item) => [
      svg("line", { class: "axis", x1: x.at(item), x2: x.at(item), y1: TOP, y2: bottom }),
      svg("text", { class: "soft", x: x.at(item), y: bottom + 18, "text-anchor": "middle" }, round(item)),
    ]);
    const adjacent = ticks(y.low, y.high, 6, axes.y.log).map((item) => [
      svg("line", { class: "axis", x1: LEFT, x2: right, y1: y.at(item), y2: y.at(item) }),
      svg("text", { class: "soft", x: LEFT - 8, y: y.at(item) + 4, "text-anchor": "end" }, round(item)),
    ]);
    const turned = `translate(14 ${(TOP + bottom) / 2}) rotate(-90)`;
    return svg("g", {}, below, adjacent,
      svg("text", { x: (LEFT + right) / 2, y: height - 8, "text-anchor": "middle" }, axes.x.title),
      svg("text", { transform: turned, "text-anchor": "middle" }, axes.y.title));
  }

  function diagonal() {
    const [low, highest] = [Math.max(x.low, y.low), Math.min(x.high, y.high)];
    return low < highest
      ? svg("line", { class: "same", x1: x.at(low), x2: x.at(highest), y1: y.at(low), y2: y.at(highest) })
      : "";
  }

  function look(number) {
    if (number === current) return;
    marks[current]?.classList.remove("on");
    current = number;
    tip.hidden = number < 0;
    if (number < 0) return;
    const point = points[number];
    marks[number].classList.add("on");
    if (!links) marks[number].parentNode.append(marks[number]); // above the others; a link would lose the focus
    fill(tip, el("b", {}, point.name), el("span", {}, point.words));
    const share = x.at(point.x) / width;
    tip.style.setProperty("left", `${100 * share}%`);
    tip.style.setProperty("top", `${(100 * y.at(point.y)) / height}%`);
    tip.className = `tip${share > 0.6 ? " left" : ""}${y.at(point.y) < 70 ? " below" : ""}`;
  }

  function nearest(event) {
    const box = drawing.getBoundingClientRect();
    const [horizontal, down] = [
      ((event.clientX - box.left) / box.width) * width,
      ((event.clientY - box.top) / box.height) * height,
    ];
    let [best, least] = [-1, event.pointerType === "touch" ? 900 : 300];
    points.forEach((point, number) => {
      const far = (x.at(point.x) - horizontal) ** 2 + (y.at(point.y) - down) ** 2;
      if (far < least) [best, least] = [number, far];
    });
    return best;
  }

  drawing.addEventListener("pointermove", (event) => look(nearest(event)));
  drawing.addEventListener("pointerleave", () => look(-1));
  drawing.addEventListener("click", (event) => {
    const number = nearest(event);
    if (number < 0 || event.ctrlKey || event.metaKey || event.shiftKey) return; // those open another tab
    event.preventDefault();
    onopen(points[number]);
  });
  drawing.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (event.key === "Enter" && current >= 0) onopen(points[current]);
    if (links || !step || !points.length) return;
    event.preventDefault();
    const place = order.indexOf(current);
    look(order[place < 0 ? 0 : Math.min(order.length - 1, Math.max(0, place + step))]);
    announce(`${points[current].name}: ${points[current].words}`);
  });
  return el("div", { class: "plot" }, drawing, tip);
}

/** Spearman's rank correlation of two lists; equal values share their mean rank. */
export function spearman(one, other) {
  const [a, b] = [ranks(one), ranks(other)];
  const middle = (one.length + 1) / 2;
  let [ab, aa, bb] = [0, 0, 0];
  a.forEach((rank, i) => {
    ab += (rank - middle) * (b[i] - middle);
    aa += (rank - middle) ** 2;
    bb += (b[i] - middle) ** 2;
  });
  return ab / Math.sqrt(aa * bb);
}

function ranks(values) {
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]);
  const result = new Array(values.length);
  for (let start = 0; start < order.length; ) {
    let end = start;
    while (end < order.length && values[order[end]] === values[order[start]]) end++;
    for (let i = start; i < end; i++) result[order[i]] = (start + 1 + end) / 2;
    start = end;
  }
  return result;
}

// -- what its axes are

const COSTS = { passes: "passes per map", seconds: "seconds per map" }; // axes beside the metrics
const KINDS = [["methods", "methods"], ["pictures", "pictures"]];

export function scatterView(context) {
  const { id, table, change, open, signal } = context;
  const controls = el("div", { class: "controls" });
  const filters = el("div", {});
  const stage = el("div", { class: "card plotcard" });
  const node = el("div", { class: "runscatter" }, controls, filters, stage);
  let asked = 0;
  let redraw = null; // draws what is on the stage anew, for another width
  const resized = new ResizeObserver(() => redraw?.(false));
  resized.observe(stage);

  function show(state) {
    const part = partOf(table, state);
    if (!part.methods.length) {
      refill(stage, nothing(`Nothing of ${part.name} is finished yet.`));
      return;
    }
    const axes = chosenAxes(part, state);
    const kinds = segments("What the points are", KINDS, state.of, (of) => change({ of }));
    refill(controls, kinds, state.of === "methods" ? ofMethods(part, axes) : ofPictures(part, axes));
    refill(filters, state.of === "pictures" ? filterBar(part, state, change) : "");
    if (state.of === "methods") drawMethods(part, axes, state);
    else drawPictures(part, axes, state);
  }

  function ofMethods(part, axes) {
    const options = [...metricOptions(part), ...Object.entries(COSTS)];
    return [
      chooser("across", options, axes.xm, (xm) => change({ xm }), "xm"),
      chooser("up", options, axes.ym, (ym) => change({ ym }), "ym"),
    ];
  }

  function ofPictures(part, axes) {
    const [methods, metrics] = [methodOptions(part), metricOptions(part)];
    return [
      chooser("across", methods, axes.x, (x) => change({ x }), "x"),
      chooser("by", metrics, axes.xm, (xm) => change({ xm }), "xm"),
      chooser("up", methods, axes.y, (y) => change({ y }), "y"),
      chooser("by", metrics, axes.ym, (ym) => change({ ym }), "ym"),
    ];
  }

  function drawMethods(part, axes, state) {
    asked++; // what pictures are on their way come too late
    const column = (name) => part.metrics.findIndex((item) => item.name === name);
    const value = (row, name) => {
      if (!COSTS[name]) return part.cells[row][column(name)];
      const mean = part.methods[row][name];
      return mean > 0 ? { mean, lower: null, upper: null } : null;
    };
    const metric = [axes.ym, axes.xm].find((item) => !COSTS[item]) ?? part.metrics[0].name;
    const points = part.methods.flatMap((method, row) => {
      const [horizontal, up] = [value(row, axes.xm), value(row, axes.ym)];
      if (!horizontal || !up) return [];
      const there = { ...UNFILTERED, view: "cell", method: method.name, metric, page: "0" };
      return [{
        x: horizontal.mean, y: up.mean,
        low: [horizontal.lower ?? NaN, up.lower ?? NaN], high: [horizontal.upper ?? NaN, up.upper ?? NaN],
        name: method.title, quiet: method.quiet, href: runAddress(id, moved(state, there)),
        words: `${valueText(part, axes.xm, horizontal)}; ${valueText(part, axes.ym, up)}`,
      }];
    });
    const lines = [
      "Means with 95 % bootstrap intervals; grey are the yardsticks. "
        + "Hover or focus a point for its name, click it to see its pictures.",
    ];
    const rank = axes.xm === axes.ym ? NaN : correlated(points);
    if (Number.isFinite(rank)) {
      lines.push(`Spearman’s rank correlation of these ${points.length} methods: ${digits(rank, 2)}.`);
    }
    const same = axes.xm === axes.ym;
    put(points, { x: titled(part, axes.xm), y: titled(part, axes.ym) }, lines, { labels: true, same });
  }

  async function drawPictures(part, axes, state) {
    const now = ++asked;
    const query = { part: part.part, method: [axes.x, axes.y], metric: [axes.xm, axes.ym], ...filtersOf(state) };
    if (!stage.firstChild) refill(stage, el("p", { class: "note nothing", role: "status" }, "One moment …"));
    let result;
    try {
      result = await ask(id, "/scores", query, signal);
    } catch (error) {
      const again = () => drawPictures(part, axes, state);
      if (error.name !== "AbortError" && now === asked) refill(stage, problem(error.message, again));
      return;
    }
    if (now !== asked) return;
    const [horizontal, up] = result.columns;
    const metrics = [axes.xm, axes.ym].map((name) => part.metrics.find((item) => item.name === name));
    const score = (which, i) => {
      const { method, scores } = result.columns[which];
      return `${title(part, method)} ${digits(scores[i], metrics[which].digits)}`;
    };
    const points = result.pictures.map((picture, i) => ({
      x: horizontal.scores[i], y: up.scores[i], name: result.names[i], hollow: result.correct[i] === 0,
      words: `${score(0, i)}; ${score(1, i)}`,
      href: runAddress(id, moved(state, { view: "picture", picture, method: axes.y, metric: axes.ym })),
    }));
    const name = (method, metric) => ({ title: `${title(part, method)}: ${arrow(metric)} ${metric.name}` });
    const named = { x: name(axes.x, metrics[0]), y: name(axes.y, metrics[1]) };
    put(points, named, sentences(part, result, metrics, points), { same: axes.xm === axes.ym });
  }

  function put(points, axes, lines, settings) {
    redraw = (anew) => {
      const width = Math.max(300, Math.round(stage.clientWidth - 36));
      if (!anew && stage.dataset.width === String(width)) return;
      stage.dataset.width = String(width);
      const onopen = (point) => open(point.href);
      const none = nothing("No point has both numbers.");
      const notes = lines.map((item) => el("p", { class: "note" }, item));
      refill(stage, points.length ? plot(points, axes, { ...settings, width, onopen }) : none, notes);
    };
    redraw(true);
  }

  return { node, show, end: () => resized.disconnect() };
}

/** The axes of a state, or some that say something: the first two metrics, the reference and another method. */
function chosenAxes(part, state) {
  const metrics = part.metrics.map((item) => item.name);
  const methods = part.methods.map((item) => item.name);
  const metricNames = state.of === "methods" ? [...metrics, ...Object.keys(COSTS)] : metrics;
  const reference = part.reference ?? methods[0];
  const other = methods.find((item) => item !== reference) ?? reference;
  const pick = (value, choices, usual) => (choices.includes(value) ? value : usual);
  const second = state.of === "methods" ? metrics[1] ?? metrics[0] : metrics[0];
  return {
    x: pick(state.x, methods, reference), y: pick(state.y, methods, other),
    xm: pick(state.xm, metricNames, metrics[0]), ym: pick(state.ym, metricNames, second),
  };
}

/** What a scatter of pictures says in words. */
function sentences(part, result, metrics, points) {
  const [horizontal, up] = result.columns;
  const many = points.length;
  const lines = [result.total > many ? `${many} of ${result.total} pictures are drawn.` : `${result.total} pictures.`];
  const alike = metrics[0].name === metrics[1].name;
  if (alike && horizontal.method !== up.method) {
    const better = points.filter((item) => (metrics[0].higher_is_better ? item.y > item.x : item.y < item.x)).length;
    const than = `${title(part, up.method)} is better than ${title(part, horizontal.method)}`;
    lines.push(`${than} on ${better} of these ${many}; on the line both are the same.`);
  }
  const rank = alike && horizontal.method === up.method ? NaN : correlated(points);
  if (Number.isFinite(rank)) lines.push(`Spearman’s rank correlation over these pictures: ${digits(rank, 2)}.`);
  if (result.correct.includes(0)) lines.push("Hollow: the model was wrong about the picture.");
  return lines;
}

function correlated(points) {
  return points.length > 2 ? spearman(points.map((item) => item.x), points.map((item) => item.y)) : NaN;
}

function valueText(part, name, result) {
  if (COSTS[name]) return `${number(result.mean)} ${name}`;
  const metric = part.metrics.find((item) => item.name === name);
  const [mean, low, highest] = [result.mean, result.lower, result.upper].map((item) => digits(item, metric.digits));
  return `${name} ${mean}${result.lower === null ? "" : ` (${low} to ${highest})`}`;
}

function title(part, method) {
  return part.methods.find((item) => item.name === method)?.title ?? method;
}

function titled(part, name) {
  if (COSTS[name]) return { title: COSTS[name], log: true };
  const metric = part.metrics.find((item) => item.name === name);
  return { title: `${arrow(metric)} ${metric.name}` };
}
