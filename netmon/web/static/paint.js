// SPDX-License-Identifier: Apache-2.0
// A piece of the timeline as a picture: a column of pixels for a bin, a strip for a lane.

export const HEIGHTS = { job: 26, rank: 16, host: 44, process: 18 };
export const GAP = 2;

const number = (hex) => {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return (255 << 24) | (b << 16) | (g << 8) | r; // little-endian RGBA
};
const darker = (colour) => (colour & 0xff000000) | ((colour >>> 1) & 0x7f7f7f);

// The colours of phases and classes as the style sheet has them.
export function palette(catalogue) {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const hex = {
    phases: catalogue.phases.map((_, at) => read(`--phase-${at}`)),
    classes: catalogue.colours,
    stack: catalogue.stack,
    ...Object.fromEntries(["ink", "faint", "line", "ground", "lane", "accent", "alarm", "own", "bad", "calm"].map((name) => [name, read(`--${name}`)])),
  };
  return { ...hex, phasePixels: hex.phases.map(number), classPixels: hex.classes.map(number), middle: number(hex.line) };
}

// Where each lane of a block is, in pixels of the device.
export function strips(lanes, ratio) {
  let y = 0;
  return lanes.map((lane) => {
    const strip = { y, height: Math.round(HEIGHTS[lane.kind] * ratio) };
    y += strip.height;
    return strip;
  });
}

const UP = [3, 2, 1, 4, 0]; // held up, transfer, waiting, not known, computing: from the top

function paintPhases(pixels, bins, strip, shares, colours) {
  for (let x = 0; x < bins; x++) {
    let y = strip.y;
    let filled = 0;
    for (const phase of UP) {
      const share = shares[phase * bins + x];
      if (!share) continue;
      filled += share;
      const end = strip.y + Math.round((Math.min(filled, 255) / 255) * strip.height);
      const colour = colours.phasePixels[phase];
      const stripe = phase === 3 ? darker(colour) : colour; // also without colours
      for (; y < end; y++) pixels[y * bins + x] = ((x + y) & 7) < 2 ? stripe : colour;
    }
  }
}

function paintRates(pixels, bins, strip, series, scale, colours) {
  const middle = strip.y + (strip.height >> 1);
  const room = (strip.height >> 1) - 1;
  for (let x = 0; x < bins; x++) {
    pixels[middle * bins + x] = colours.middle;
    for (let direction = 0; direction < 2; direction++) {
      const way = direction ? -1 : 1; // rx below, tx above
      let y = 0;
      let sum = 0;
      for (const class_ of colours.stack) { // from the middle
        const rates = series[direction * colours.classes.length + class_];
        if (!rates || !rates[x]) continue;
        sum += rates[x];
        const end = Math.min(room, Math.max(y + 1, Math.round((sum / scale) * room)));
        for (; y < end; y++) pixels[(middle + way * (y + 1)) * bins + x] = colours.classPixels[class_];
      }
    }
  }
}

// The picture of a tile; null: nothing is in it.
export function paintTile(tile, lanes, bins, ratio, colours, scaleOf) {
  const boxes = strips(lanes, ratio);
  const last = boxes[boxes.length - 1];
  if (!last) return null;
  const image = new ImageData(bins, last.y + last.height);
  const pixels = new Uint32Array(image.data.buffer);
  const phases = tile.phase_lane ?? [];
  phases.forEach((lane, at) =>
    paintPhases(pixels, bins, boxes[lane], tile.phases.subarray(at * 5 * bins, (at + 1) * 5 * bins), colours));
  for (const [lane, series] of ratesByLane(tile, bins)) paintRates(pixels, bins, boxes[lane], series, scaleOf(lanes[lane]), colours);
  const canvas = new OffscreenCanvas(image.width, image.height);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Lane → the rates of its series, by direction and class.
export function ratesByLane(tile, bins) {
  if (!tile.byLane) {
    tile.byLane = new Map();
    (tile.rate_lane ?? []).forEach((lane, at) => {
      if (!tile.byLane.has(lane)) tile.byLane.set(lane, []);
      tile.byLane.get(lane)[tile.rate_series[at]] = tile.rate_bps.subarray(at * bins, (at + 1) * bins);
    });
  }
  return tile.byLane;
}
