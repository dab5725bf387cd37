/** The live strip: speed, depth, acceptance and memory traffic, over the last moments while an answer comes
 * and over the whole of it afterwards. */

import { $ } from "./dom.js";

const WINDOW = 2; // seconds of decoding
const CALM = 200; // milliseconds between two changes

const COUNTS = ["decode_tokens", "decode_seconds", "rounds", "drafted", "accepted", "draft_passes"];
const NOTHING = Object.fromEntries(COUNTS.map((name) => [name, 0]));

let about = null;
let samples = [];
let changed = 0;

/** What is served: a pass of each model reads its weights once. */
export function serving(found) {
  about = found;
}

/** A new answer begins. */
export function restart() {
  samples = [];
  write(NOTHING);
}

/** Statistics of the answer so far. */
export function sample(stats) {
  if (!stats || stats.decode_seconds === samples.at(-1)?.decode_seconds) return;
  samples.push(stats);
  while (samples.length > 2 && stats.decode_seconds - samples[1].decode_seconds > WINDOW) samples.shift();
  const now = performance.now();
  if (now - changed < CALM) return;
  changed = now;
  write(difference(stats, samples[0] === stats ? NOTHING : samples[0]));
}

/** Statistics of a whole answer, or none. */
export function total(stats) {
  samples = [];
  write(stats ?? NOTHING);
}

function difference(later, earlier) {
  return Object.fromEntries(COUNTS.map((name) => [name, later[name] - earlier[name]]));
}

function write(counts) {
  const { decode_tokens, decode_seconds, rounds, drafted, accepted, draft_passes } = counts;
  const bytes = rounds * (about?.target_bytes ?? 0) + draft_passes * (about?.draft_bytes ?? 0);
  put("speed", decode_tokens / decode_seconds, 1);
  put("depth", drafted / rounds, 1);
  put("acceptance", (100 * accepted) / drafted, 0);
  put("bandwidth", about ? bytes / decode_seconds / 1e9 : NaN, 1);
}

function put(name, value, digits) {
  const known = Number.isFinite(value);
  $(name).textContent = known ? value.toFixed(digits) : "–";
}
