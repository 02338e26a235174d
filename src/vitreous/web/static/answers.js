// Questions that take time: asked in streams, remembered, and dropped when nobody wants them any more.

import { stream } from "./common.js";

const REMEMBERED = 400;
const AT_ONCE = 3; // streams: a browser opens six connections to one server, and short questions need some of them

/**
 * What has been asked. An entry is `{task, status, before, done, seconds, result, message}` with the status "waiting",
 * "running", "done", "error" or "cancelled". Listeners of "change" hear the key of what has changed.
 */
export class Answers extends EventTarget {
  #entries = new Map();
  #streams = new Set();
  #line = []; // batches that wait here for a free stream
  #most;

  constructor(most) {
    super();
    this.#most = most;
  }

  get(key) {
    return this.#entries.get(key) ?? null;
  }

  /** How many questions are still open. */
  get open() {
    const asked = [...this.#streams].reduce((sum, each) => sum + each.pending.size, 0);
    return this.#line.reduce((sum, batch) => sum + batch.length, asked);
  }

  /**
   * Say all that the page wants now, the most urgent first: `[{key, alone, …task}]`. What was wanted before and is no
   * more is cancelled, also on the server; what is known is not asked again. Cheap questions travel together, so that
   * they share passes; those marked `alone` have a stream of their own, which stops without the others.
   */
  want(tasks) {
    const wanted = new Set(tasks.map((task) => task.key));
    for (const each of [...this.#streams]) {
      if ([...each.pending].every((key) => wanted.has(key))) continue;
      this.#end(each);
      for (const key of each.pending) this.#entries.delete(key);
    }
    for (const task of this.#line.flat()) if (!wanted.has(task.key)) this.#entries.delete(task.key);
    const fresh = tasks.filter((task) => !this.#entries.has(task.key));
    for (const task of fresh) {
      this.#entries.set(task.key, { task, status: "waiting", before: null, done: 0, seconds: 0 });
      this.#tell(task.key);
    }
    const still = this.#line.map((batch) => batch.filter((task) => wanted.has(task.key)));
    this.#line = [...still, ...this.#batches(fresh)].filter((batch) => batch.length);
    this.#next();
    this.#forget(wanted);
  }

  #batches(tasks) {
    const batches = [];
    let together = null;
    for (const task of tasks) {
      if (task.alone) batches.push([task]);
      else if (together && together.length < this.#most) together.push(task);
      else batches.push((together = [task]));
    }
    return batches;
  }

  #next() {
    while (this.#line.length && this.#streams.size < AT_ONCE) this.#ask(this.#line.shift());
  }

  /** Stop one question, or all that are open; those asked together with it go on. */
  cancel(key = null) {
    const stopped = (task) => key === null || task.key === key;
    const rest = [];
    for (const each of [...this.#streams]) {
      if (key !== null && !each.pending.has(key)) continue;
      const pending = [...each.pending].map((one) => this.#entries.get(one).task);
      this.#end(each);
      for (const task of pending.filter(stopped)) this.#set(task.key, { status: "cancelled" });
      rest.push(...pending.filter((task) => !stopped(task)));
    }
    for (const task of this.#line.flat().filter(stopped)) this.#set(task.key, { status: "cancelled" });
    const still = this.#line.map((batch) => batch.filter((task) => !stopped(task)));
    this.#line = [...this.#batches(rest), ...still].filter((batch) => batch.length);
    this.#next();
  }

  /** Forget an answer, so that it is asked again. */
  forget(key) {
    this.#entries.delete(key);
  }

  #end(each) {
    this.#streams.delete(each);
    each.stop.abort();
  }

  async #ask(tasks) {
    const mine = { stop: new AbortController(), pending: new Set(tasks.map((task) => task.key)) };
    this.#streams.add(mine);
    const bodies = tasks.map(({ key, alone, ...body }) => body);
    try {
      await stream("/api/ask", { tasks: bodies }, (said) => this.#hear(mine, tasks, said), mine.stop.signal);
      this.#fail(mine, "The server ended without an answer.");
    } catch (error) {
      this.#fail(mine, error.message);
    }
    if (this.#streams.delete(mine)) this.#next();
    this.#tell(null);
  }

  #hear(mine, tasks, said) {
    if (!this.#streams.has(mine) || said.task === undefined) return;
    const { key } = tasks[said.task];
    if (!mine.pending.has(key)) return;
    if (said.event === "queued") this.#set(key, { before: said.before });
    else if (said.event === "progress") this.#set(key, { status: "running", done: said.done, seconds: said.seconds });
    else if (said.event === "result") this.#finish(mine, key, { status: "done", result: said });
    else if (said.event === "error") this.#finish(mine, key, { status: "error", message: said.message });
  }

  #finish(mine, key, changes) {
    mine.pending.delete(key);
    this.#set(key, changes);
  }

  #fail(mine, message) {
    if (!this.#streams.has(mine)) return; // it was cancelled, and what it asked is somebody else's now
    for (const key of [...mine.pending]) this.#finish(mine, key, { status: "error", message });
  }

  #set(key, changes) {
    const entry = this.#entries.get(key);
    if (!entry) return;
    Object.assign(entry, changes);
    this.#tell(key);
  }

  #tell(key) {
    this.dispatchEvent(new CustomEvent("change", { detail: key }));
  }

  #forget(wanted) {
    for (const [key, entry] of this.#entries) {
      if (this.#entries.size <= REMEMBERED) break;
      if (!wanted.has(key) && entry.status !== "waiting" && entry.status !== "running") this.#entries.delete(key);
    }
  }
}
