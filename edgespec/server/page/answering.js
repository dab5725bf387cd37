/** Answers that are coming: one for a conversation at a time, several for several. */

import * as api from "./api.js";
import { beginAnswer, forServer, take } from "./conversation.js";
import { SAMPLING, put, settings } from "./store.js";

const KEEP = 1_000; // milliseconds between two writes to the browser's store

const running = new Map();

/** Whether the conversation is being answered. */
export const isRunning = (id) => running.has(id);

/** Stop the conversation's answer; what has come stays. */
export const stop = (id) => running.get(id)?.abort();

/** Answer the conversation's last message. `onprogress(message)` hears of every change; ends when the
 * answer does, and tells how: "done", "stopped" or a Refusal. */
export async function answer(conversation, onprogress) {
  const abort = new AbortController();
  const body = { messages: forServer(conversation), ...sampling() };
  const message = beginAnswer(conversation, settings.max_tokens);
  running.set(conversation.id, abort);
  let written = Date.now();
  let outcome = "done";
  onprogress(message);
  try {
    for await (const chunk of api.answer(body, settings.key, abort.signal)) {
      abort.signal.throwIfAborted(); // chunks that had come already are not wanted any more
      take(message, chunk);
      onprogress(message);
      if (Date.now() - written > KEEP) {
        written = Date.now();
        put(conversation).catch(() => {}); // the last write tells
      }
    }
  } catch (error) {
    outcome = failed(message, abort.signal.aborted ? abort.signal.reason : error); // whatever the browser calls it
  }
  if (running.get(conversation.id) === abort) running.delete(conversation.id); // or an edit began another
  conversation.updated = Date.now();
  onprogress(message);
  return outcome;
}

function failed(message, error) {
  if (error.name === "AbortError") {
    message.finish = "stopped";
    return "stopped";
  }
  const refusal = error instanceof api.Refusal ? error : new api.Refusal(`This page failed: ${error.message}`);
  if (!(error instanceof api.Refusal)) console.error(error);
  message.error = { text: refusal.message, kind: refusal.kind };
  return refusal;
}

function sampling() {
  return Object.fromEntries(SAMPLING.filter((name) => settings[name] !== null).map((name) => [name, settings[name]]));
}
