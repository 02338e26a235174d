// What the model says about the picture without some patches: the latest question wins, and answers are remembered.

import { api, base64 } from "./common.js";

const REMEMBERED = 300;

export class Probe {
  #known = new Map();
  #lanes = new Map();
  #tell;

  constructor(tell) {
    this.#tell = tell;
  }

  /**
   * The answer for these patches, if it is known; otherwise it is asked for, and the last answer of this lane is given
   * until then. A lane has one question in flight; of those that come meanwhile only the latest is asked.
   * Returns `{answer, fresh, problem}`.
   */
  look(lane, { model, picture, removed, fill, target }) {
    const body = { model, picture, removed: base64(removed), fill, target };
    const key = JSON.stringify(body);
    const mine = this.#lanes.get(lane) ?? { busy: false, wanted: null, answer: null, problem: null, about: null };
    this.#lanes.set(lane, mine);
    const about = `${model} ${picture} ${target}`;
    if (about !== mine.about) Object.assign(mine, { about, answer: null, problem: null });
    if (this.#known.has(key)) {
      Object.assign(mine, { wanted: null, answer: this.#known.get(key), problem: null });
      return { answer: mine.answer, fresh: true, problem: null };
    }
    if (mine.failed !== key) {
      mine.wanted = { key, body, about };
      if (!mine.busy) this.#run(mine);
    }
    return { answer: mine.answer, fresh: false, problem: mine.problem };
  }

  async #run(mine) {
    mine.busy = true;
    while (mine.wanted) {
      const { key, body, about } = mine.wanted;
      mine.wanted = null;
      try {
        const answer = await api("/api/try", { body });
        this.#known.set(key, answer);
        if (this.#known.size > REMEMBERED) this.#known.delete(this.#known.keys().next().value);
        if (mine.about === about) Object.assign(mine, { answer, problem: null, failed: null });
      } catch (error) {
        if (mine.about === about) Object.assign(mine, { problem: error.message, failed: key });
      }
      this.#tell();
    }
    mine.busy = false;
  }

  /** Ask again what failed. */
  again() {
    for (const mine of this.#lanes.values()) Object.assign(mine, { failed: null, problem: null });
    this.#tell();
  }
}
