// Any metric against any other: every method a point with its intervals, or every picture a point.

import { el, number } from "./common.js";
import { problem } from "./parts.js";
import { filterBar } from "./runs_filters.js";
import { arrow, ask, chooser, digits, methodOptions, metricOptions, nothing, refill, segments } from "./runs_parts.js";
import { plot, spearman } from "./runs_plot.js";
import { filtersOf, moved, partOf, runAddress, UNFILTERED } from "./runs_state.js";

const COSTS = { passes: "passes per map", seconds: "seconds per map" }; // axes beside the metrics
const KINDS = [["methods", "methods"], ["pictures", "pictures"]];

export function scatterView(context) {
  const { id, table, change, open, signal } = context;
  const controls = el("div", { class: "controls" });
  const filters = el("div", {});
  const stage = el("div", { class: "card plotcard" });
  const node = el("div", { class: "runscatter" }, controls, filters, stage);
  let asked = 0;
  let shown = null; // draws what is on the stage anew, for another width
  const resized = new ResizeObserver(() => shown?.(false));
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
    const column = (name) => part.metrics.findIndex((each) => each.name === name);
    const value = (row, name) => {
      if (!COSTS[name]) return part.cells[row][column(name)];
      const mean = part.methods[row][name];
      return mean > 0 ? { mean, low: null, high: null } : null;
    };
    const metric = [axes.ym, axes.xm].find((each) => !COSTS[each]) ?? part.metrics[0].name;
    const points = part.methods.flatMap((method, row) => {
      const [across, up] = [value(row, axes.xm), value(row, axes.ym)];
      if (!across || !up) return [];
      const there = { ...UNFILTERED, view: "cell", method: method.name, metric, page: "0" };
      return [{
        x: across.mean, y: up.mean, low: [across.low ?? NaN, up.low ?? NaN], high: [across.high ?? NaN, up.high ?? NaN],
        name: method.title, quiet: method.quiet, href: runAddress(id, moved(state, there)),
        words: `${told(part, axes.xm, across)}; ${told(part, axes.ym, up)}`,
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
    let found;
    try {
      found = await ask(id, "/scores", query, signal);
    } catch (error) {
      const again = () => drawPictures(part, axes, state);
      if (error.name !== "AbortError" && now === asked) refill(stage, problem(error.message, again));
      return;
    }
    if (now !== asked) return;
    const [across, up] = found.columns;
    const metrics = [axes.xm, axes.ym].map((name) => part.metrics.find((each) => each.name === name));
    const score = (which, i) => {
      const { method, scores } = found.columns[which];
      return `${title(part, method)} ${digits(scores[i], metrics[which].digits)}`;
    };
    const points = found.pictures.map((picture, i) => ({
      x: across.scores[i], y: up.scores[i], name: found.names[i], hollow: found.correct[i] === 0,
      words: `${score(0, i)}; ${score(1, i)}`,
      href: runAddress(id, moved(state, { view: "picture", picture, method: axes.y, metric: axes.ym })),
    }));
    const name = (method, metric) => ({ title: `${title(part, method)}: ${arrow(metric)} ${metric.name}` });
    const named = { x: name(axes.x, metrics[0]), y: name(axes.y, metrics[1]) };
    put(points, named, sentences(part, found, metrics, points), { same: axes.xm === axes.ym });
  }

  function put(points, axes, lines, how) {
    shown = (anew) => {
      const width = Math.max(300, Math.round(stage.clientWidth - 36));
      if (!anew && stage.dataset.width === String(width)) return;
      stage.dataset.width = String(width);
      const onopen = (point) => open(point.href);
      const none = nothing("No point has both numbers.");
      const notes = lines.map((each) => el("p", { class: "note" }, each));
      refill(stage, points.length ? plot(points, axes, { ...how, width, onopen }) : none, notes);
    };
    shown(true);
  }

  return { node, show, end: () => resized.disconnect() };
}

/** The axes of a state, or some that say something: the first two metrics, the reference and another method. */
function chosenAxes(part, state) {
  const metrics = part.metrics.map((each) => each.name);
  const methods = part.methods.map((each) => each.name);
  const known = state.of === "methods" ? [...metrics, ...Object.keys(COSTS)] : metrics;
  const reference = part.reference ?? methods[0];
  const other = methods.find((each) => each !== reference) ?? reference;
  const pick = (value, among, usual) => (among.includes(value) ? value : usual);
  const second = state.of === "methods" ? metrics[1] ?? metrics[0] : metrics[0];
  return {
    x: pick(state.x, methods, reference), y: pick(state.y, methods, other),
    xm: pick(state.xm, known, metrics[0]), ym: pick(state.ym, known, second),
  };
}

/** What a scatter of pictures says in words. */
function sentences(part, found, metrics, points) {
  const [across, up] = found.columns;
  const many = points.length;
  const lines = [found.total > many ? `${many} of ${found.total} pictures are drawn.` : `${found.total} pictures.`];
  const alike = metrics[0].name === metrics[1].name;
  if (alike && across.method !== up.method) {
    const better = points.filter((each) => (metrics[0].up ? each.y > each.x : each.y < each.x)).length;
    const than = `${title(part, up.method)} is better than ${title(part, across.method)}`;
    lines.push(`${than} on ${better} of these ${many}; on the line both are the same.`);
  }
  const rank = alike && across.method === up.method ? NaN : correlated(points);
  if (Number.isFinite(rank)) lines.push(`Spearman’s rank correlation over these pictures: ${digits(rank, 2)}.`);
  if (found.correct.includes(0)) lines.push("Hollow: the model was wrong about the picture.");
  return lines;
}

function correlated(points) {
  return points.length > 2 ? spearman(points.map((each) => each.x), points.map((each) => each.y)) : NaN;
}

function told(part, name, found) {
  if (COSTS[name]) return `${number(found.mean)} ${name}`;
  const metric = part.metrics.find((each) => each.name === name);
  const [mean, low, high] = [found.mean, found.low, found.high].map((each) => digits(each, metric.digits));
  return `${name} ${mean}${found.low === null ? "" : ` (${low} to ${high})`}`;
}

function title(part, method) {
  return part.methods.find((each) => each.name === method)?.title ?? method;
}

function titled(part, name) {
  if (COSTS[name]) return { title: COSTS[name], log: true };
  const metric = part.metrics.find((each) => each.name === name);
  return { title: `${arrow(metric)} ${metric.name}` };
}
