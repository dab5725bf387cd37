/** Whether the server is there, and what it serves. */

import * as api from "./api.js";
import { $ } from "./dom.js";
import * as strip from "./strip.js";
import { settings } from "./store.js";

const AGAIN = 4_000; // milliseconds between two looks for a server that is not there

/** Whether the server wants a key, or another one. */
export let wantsKey = false;

let timer = 0;

/** Ask the server what it serves, and show that, or why it cannot be shown. `onkey` is called when it wants
 * a key, or another one. */
export async function check(onkey) {
  clearTimeout(timer);
  try {
    const about = await api.about(settings.key);
    wantsKey = false;
    strip.serving(about);
    describe(about);
    banner(null);
  } catch (refusal) {
    if (!(refusal instanceof api.Refusal)) throw refusal;
    banner(refusal.kind === "unreachable" ? "The server cannot be reached. Your conversations are here; to go on, start it again with “edgespec serve”. This page finds it by itself." : refusal.message);
    if (refusal.kind === "key") ((wantsKey = true), onkey());
    clearTimeout(timer); // another look may have failed meanwhile
    if (refusal.kind !== "key") timer = setTimeout(() => document.hidden || check(onkey), AGAIN);
  }
}

function describe({ model, target, draft, depth, n_ctx: context }) {
  const drafted = draft && depth !== 0 ? `drafted by ${draft === "ngram" ? "prompt lookup" : draft}` : "no draft";
  $("pair").textContent = `${model} · ${drafted}`;
  $("pair").title = `${target}, ${drafted}, depth ${depth}, context ${context} tokens`;
  $("empty-pair").textContent = `${target}, ${drafted}, with a context of ${context.toLocaleString()} tokens.`;
}

function banner(text) {
  $("banner").hidden = text === null;
  if (text !== null && $("banner-text").textContent !== text) $("banner-text").textContent = text;
}
