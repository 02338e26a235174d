// Files of what only the screen has: layers, heads, owners. The server writes those of plain maps.

const TILE = 320, GAP = 18, TEXT = 15, ACROSS = 4;

/**
 * A file of some pictures. `items`: `[{name, canvas, map}]`; `title` and `words` say what they are; `keys`:
 * `[{colour, label}]` where colours mean classes. Returns `{blob, name}`.
 */
export async function exported(format, { items, title, words, keys = [] }) {
  const name = `vitreous-${title.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60)}.${format}`;
  if (format === "npy") return { blob: new Blob([npy(items.map((item) => item.map))]), name };
  const sheet = { ...placed(items), items, title, words, keys };
  const drawn = format === "html" ? page(sheet) : vector(sheet);
  if (format === "png") return { blob: await raster(drawn, sheet), name };
  const kind = format === "svg" ? "image/svg+xml" : "text/html";
  return { blob: new Blob([drawn], { type: `${kind};charset=utf-8` }), name };
}

function placed(items) {
  const across = Math.min(ACROSS, items.length);
  const rows = Math.ceil(items.length / across);
  return { across, wide: GAP + across * (TILE + GAP), high: 96 + rows * (TILE + 46) };
}

function escaped(text) {
  return text.replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]);
}

/** A panel with text as text and pictures inside. */
function vector({ items, title, words, keys, across, wide, high }) {
  const text = (x, y, said, more = "") => `<text x="${x}" y="${y}" ${more}>${escaped(said)}</text>`;
  const tiles = items.map(({ name, canvas }, place) => {
    const x = GAP + (place % across) * (TILE + GAP), y = 76 + Math.floor(place / across) * (TILE + 46);
    const image = `<image x="${x}" y="${y}" width="${TILE}" height="${TILE}" href="${canvas.toDataURL("image/png")}"/>`;
    return image + text(x, y + TILE + 22, name);
  });
  const key = ({ colour, label }, place) => {
    const x = GAP + place * 170, y = high - 22;
    return `<rect x="${x}" y="${y}" width="13" height="13" rx="3" fill="${colour}"/>${text(x + 20, y + 11, label)}`;
  };
  const head = text(GAP, 34, title, 'font-size="22" font-weight="650"') + text(GAP, 58, words, 'fill="#5d636e"');
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${wide}" height="${high}" viewBox="0 0 ${wide} ${high}" ` +
    `font-family="system-ui, sans-serif" font-size="${TEXT}" fill="#1b1d22">` +
    `<rect width="100%" height="100%" fill="#fff"/>${head}${tiles.join("")}${keys.map(key).join("")}</svg>`
  );
}

/** The same panel in pixels, twice as fine. */
async function raster(drawn, { wide, high }) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawn)}`;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * wide, height: 2 * high });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * wide, 2 * high);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function page(sheet) {
  const style = "body{margin:24px auto;max-width:1400px}svg{max-width:100%;height:auto}";
  return (
    `<!doctype html><html lang="en"><meta charset="utf-8"><title>${escaped(sheet.title)}</title>` +
    `<style>${style}</style><main>${vector(sheet)}</main></html>`
  );
}

/** The raw values as numpy reads them: `[n, h, w]` in float32. */
export function npy(maps) {
  const shape = maps.length === 1 ? maps[0].shape : [maps.length, ...maps[0].shape];
  const said = `{'descr': '<f4', 'fortran_order': False, 'shape': (${shape.join(", ")},), }`;
  const length = 64 * Math.ceil((10 + said.length + 1) / 64) - 10;
  const head = new Uint8Array(10 + length);
  head.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, length & 255, length >> 8]);
  head.set(new TextEncoder().encode(said.padEnd(length - 1) + "\n"), 10);
  return new Blob([head, ...maps.map((map) => map.data)]);
}
