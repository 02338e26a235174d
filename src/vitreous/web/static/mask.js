// Patches chosen by hand: with the mouse, a finger or the keyboard.

import { announce, base64, el } from "./common.js";

/** Bits as letters for the address, and back. */
export function packed(mask) {
  const bytes = new Uint8Array(Math.ceil(mask.length / 8));
  mask.forEach((on, i) => on && (bytes[i >> 3] |= 1 << (i & 7)));
  return base64(bytes).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function unpacked(text, count) {
  const mask = new Uint8Array(count);
  let letters;
  try {
    letters = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    return mask;
  }
  for (let i = 0; i < count && i >> 3 < letters.length; i++) mask[i] = (letters.charCodeAt(i >> 3) >> (i & 7)) & 1;
  return mask;
}

/** A layer over a picture to paint patches in: `onpaint(mask)` while painting, `onend(mask)` when a stroke ends. */
export class MaskLayer {
  #cursor = [0, 0];
  #stroke = null;

  constructor(store, { onpaint, onend }) {
    this.store = store;
    this.onpaint = onpaint;
    this.onend = onend;
    this.canvas = el("canvas", {});
    this.cursor = el("span", { class: "mark pen", hidden: true });
    this.node = el("div", {
      class: "masking", tabindex: "0", role: "application", hidden: true, "aria-roledescription": "drawing of patches",
      "aria-label": "Draw your own mask. Arrow keys move, Space takes or gives back a patch, Shift with arrows paints.",
      onpointerdown: (event) => this.#down(event),
      onpointermove: (event) => this.#stroke !== null && this.#paint(event),
      onpointerup: () => this.#up(),
      onpointercancel: () => this.#up(),
      onkeydown: (event) => this.#key(event),
      onfocus: () => this.#follow(true),
      onblur: () => this.#follow(false),
    }, this.canvas, this.cursor);
  }

  get painting() {
    return this.#stroke !== null;
  }

  update(mask) {
    this.mask = mask;
    const [rows, columns] = this.store.model.grid;
    const cell = 16;
    if (this.canvas.width !== columns * cell) this.canvas.width = columns * cell;
    if (this.canvas.height !== rows * cell) this.canvas.height = rows * cell;
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.fillStyle = "rgb(255 255 255 / 16%)";
    for (let row = 0; row < rows; row++) for (let column = 0; column < columns; column++) pen.fillRect(
      column * cell,
      row * cell,
      1,
      cell,
    ), pen.fillRect(column * cell, row * cell, cell, 1);
    for (const [colour, width] of [["rgb(0 0 0 / 75%)", 4], ["#fff", 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      const inside = (row, column) => row >= 0 && column >= 0 && row < rows && column < columns;
      const on = (row, column) => inside(row, column) && mask[row * columns + column] === 1;
      for (let row = 0; row <= rows; row++)
        for (let column = 0; column <= columns; column++) {
          if (on(row, column) !== on(row - 1, column)) pen.moveTo(column * cell, row * cell), pen.lineTo(
            (column + 1) * cell,
            row * cell,
          );
          if (on(row, column) !== on(row, column - 1)) pen.moveTo(column * cell, row * cell), pen.lineTo(
            column * cell,
            (row + 1) * cell,
          );
        }
      pen.stroke();
    }
  }

  #cell(event) {
    const box = this.node.getBoundingClientRect();
    const [rows, columns] = this.store.model.grid;
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return row < 0 || column < 0 || row >= rows || column >= columns ? null : [row, column];
  }

  #down(event) {
    const cell = this.#cell(event);
    if (!cell) return;
    event.preventDefault();
    this.node.focus({ preventScroll: true });
    this.node.setPointerCapture(event.pointerId);
    this.#stroke = this.mask[cell[0] * this.store.model.grid[1] + cell[1]] ? 0 : 1;
    this.#paint(event);
  }

  #paint(event) {
    const cell = this.#cell(event);
    if (cell) this.#put(cell, this.#stroke);
  }

  #up() {
    if (this.#stroke === null) return;
    this.#stroke = null;
    this.onend(this.mask);
  }

  #put(cell, value) {
    this.#cursor = cell;
    const place = cell[0] * this.store.model.grid[1] + cell[1];
    this.#follow(document.activeElement === this.node);
    if (this.mask[place] === value) return;
    this.mask = Uint8Array.from(this.mask);
    this.mask[place] = value;
    this.update(this.mask);
    this.onpaint(this.mask);
  }

  #key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const [rows, columns] = this.store.model.grid;
    const [row, column] = this.#cursor;
    if (step) {
      event.preventDefault();
      const next = [
        Math.min(rows - 1, Math.max(0, row + step[0])),
        Math.min(columns - 1, Math.max(0, column + step[1])),
      ];
      this.#cursor = next;
      if (event.shiftKey) this.#put(next, 1), this.onend(this.mask);
      this.#follow(true);
      announce(
        `row ${next[0] + 1}, column ${next[1] + 1}, ${this.mask[next[0] * columns + next[1]] ? "taken" : "free"}`,
      );
    } else if (event.key === " ") {
      event.preventDefault();
      this.#put([row, column], this.mask[row * columns + column] ? 0 : 1);
      this.onend(this.mask);
    }
  }

  #follow(there) {
    const [rows, columns] = this.store.model.grid;
    const [row, column] = this.#cursor;
    this.cursor.hidden = !there;
    Object.assign(
      this.cursor.style,
      {
        left: `${(100 * column) / columns}%`,
        top: `${(100 * row) / rows}%`,
        width: `${100 / columns}%`,
        height: `${100 / rows}%`,
      },
    );
  }
}
