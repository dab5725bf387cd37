/** The chat page: what happens when. Conversations are in conversation.js, answers come in answering.js. */

import * as answering from "./answering.js";
import * as connection from "./connection.js";
import { create, cutFrom, say } from "./conversation.js";
import { $, announce, composes, relabel, toast } from "./dom.js";
import { Answer, Question } from "./messages.js";
import { Follower } from "./scroll.js";
import * as settingsDialog from "./settings.js";
import * as sidebar from "./sidebar.js";
import * as store from "./store.js";
import * as strip from "./strip.js";

const { settings } = store;
const conversations = new Map();
const input = $("input");
const follower = new Follower($("scroller"), $("content"));
let current = create(settings.system);
let views = new Map(); // of the current conversation's messages
let waiting = false; // for the next time that is shown
const PACE = 80; // milliseconds between two drawings of a growing answer
let pace = PACE;
const touch = matchMedia("(pointer: coarse)");

// What is seen

function showConversation() {
  strip.restart();
  views = new Map(current.messages.map((message) => [message, views.get(message) ?? viewOf(message)]));
  $("messages").replaceChildren(...[...views.values()].map((view) => view.element));
  showEverything();
  if (current.messages.length) follower.toEnd();
  else follower.toStart();
}

function viewOf(message) {
  if (message.role === "user") return new Question(message, (text) => edit(message, text));
  return new Answer(message, { regenerate: () => regenerate(message), openSettings: () => openSettings(true) });
}

function showEverything() {
  const id = current.id;
  const running = answering.isRunning(id);
  const last = current.messages.at(-1);
  for (const [message, view] of views) {
    if (view instanceof Answer) {
      view.show({ running: running && message === last, coloured: settings.coloured, last: message === last });
    }
  }
  $("empty").hidden = current.messages.length > 0;
  $("title").textContent = current.title;
  document.title = current.messages.length ? `${current.title} · edgespec` : "edgespec";
  $("colours").setAttribute("aria-pressed", settings.coloured);
  $("legend").hidden = !settings.coloured;
  relabel($("send"), running ? "stop" : "send", running ? "Stop" : "Send");
  $("send").disabled = !running && !input.value.trim();
  if (!running) strip.total(current.messages.findLast((message) => message.stats)?.stats);
  sidebar.show(conversations.values(), id, { open, rename, remove });
}

/** A growing answer changed: show that soon, with whatever comes until then. Often enough to be read; the
 * model may need the processor that draws, which a long list takes longer for with every token. */
function progress(message) {
  strip.sample(message.stats);
  if (waiting) return;
  waiting = true;
  setTimeout(() => {
    waiting = false;
    const begun = performance.now();
    const running = answering.isRunning(current.id);
    views.get(message)?.show({ running, coloured: settings.coloured, last: true });
    pace = Math.max(PACE, 4 * (performance.now() - begun));
  }, pace);
}

// What people do

async function send(text) {
  say(current, text);
  conversations.set(current.id, current);
  if (location.hash !== `#${current.id}`) history.pushState(null, "", `#${current.id}`);
  await answer();
}

async function answer() {
  const conversation = current;
  const isShown = () => conversation === current;
  const isLast = (message) => message === conversation.messages.at(-1); // an edit may have begun another
  announce("Answering");
  connection.check(() => {}); // the server may have been started anew, with another model
  const ending = answering.answer(conversation, (message) => isShown() && isLast(message) && progress(message));
  showConversation();
  keep(conversation);
  const outcome = await ending;
  keep(conversation);
  if (isShown()) showEverything();
  else sidebar.show(conversations.values(), current.id, { open, rename, remove });
  const tokens = conversation.messages.at(-1)?.stats?.tokens ?? 0;
  if (outcome === "done") announce(`Answer complete, ${tokens} tokens`);
  else if (answering.isRunning(conversation.id)) return;
  else if (outcome === "stopped") announce("Stopped");
  else {
    announce(""); // the error speaks for itself
    if (outcome.kind === "unreachable" || outcome.kind === "key") connection.check(() => {});
  }
}

function edit(message, text) {
  answering.stop(current.id);
  cutFrom(current, message);
  send(text);
  focusInput();
}

function regenerate(message) {
  answering.stop(current.id);
  cutFrom(current, message);
  answer();
  focusInput();
}

function startNew() {
  sidebar.close();
  if (location.hash) history.pushState(null, "", location.pathname);
  current = create(settings.system);
  showConversation();
  focusInput();
}

function open(id) {
  current = conversations.get(id) ?? create(settings.system);
  showConversation();
}

/** What the address asks for: a conversation (#ID), or a new one with text that another app shares in the
 * message box (#share=TEXT), for the person to send, or not. What stood there already stays. */
function arrive() {
  const shared = new URLSearchParams(location.hash.slice(1)).get("share");
  if (shared === null) return open(location.hash.slice(1));
  history.replaceState(null, "", location.pathname);
  open("");
  input.value = [input.value, shared].filter(Boolean).join("\n");
  fit();
}

function rename(id, title) {
  const conversation = conversations.get(id);
  Object.assign(conversation, { title, named: true });
  keep(conversation);
  showEverything();
}

function remove(id) {
  const conversation = conversations.get(id);
  answering.stop(id);
  conversations.delete(id);
  store.remove(id).catch(unkept);
  const undo = () => {
    conversations.set(id, conversation);
    keep(conversation);
    showEverything();
  };
  toast(`Deleted “${conversation.title}”.`, { label: "Undo", run: undo });
  if (id === current.id) startNew();
  else showEverything();
}

function openSettings(wrongKey = connection.wantsKey) {
  settingsDialog.open(current.system, wrongKey);
}

// What is kept

function keep(conversation) {
  if (conversations.has(conversation.id)) store.put(conversation).catch(unkept);
}

function unkept(error) {
  console.error(error);
  toast("This browser does not keep conversations (private window, or its storage is full). They are lost on closing.");
}

store.onChange(async (id) => {
  if (answering.isRunning(id)) return;
  const changed = await store.get(id);
  if (answering.isRunning(id)) return; // an answer began meanwhile
  if (id === current.id && changed && grow(changed)) return showEverything();
  if (changed) conversations.set(id, changed);
  else conversations.delete(id);
  if (id === current.id) open(id);
  else showEverything();
});

/** Another tab wrote the conversation that is shown: where that only continues its last answer (or renames
 * it), so does this one, and what is on the screen stays. False: it has to be shown anew. */
function grow(changed) {
  const { messages } = current;
  const last = messages.at(-1);
  const same = messages.every(({ role, content }, i) => {
    const other = changed.messages[i];
    return role === other?.role && (i < messages.length - 1 ? content === other.content : other.content.startsWith(content));
  });
  if (!last || !same || last.role === "user" || changed.messages.length !== messages.length) return false;
  Object.assign(last, changed.messages.at(-1));
  Object.assign(current, changed, { messages });
  return true;
}

// The composer

/** The text in the box changed, or its width. */
function fit() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  store.saveDraft(input.value);
  $("send").disabled = !answering.isRunning(current.id) && !input.value.trim();
}

/** Not on touch screens, where it brings up a keyboard over half of the page. */
function focusInput() {
  if (!touch.matches) input.focus();
}

function submit() {
  if (answering.isRunning(current.id)) answering.stop(current.id);
  else if (input.value.trim()) {
    const text = input.value;
    input.value = "";
    fit();
    send(text);
  }
}

input.addEventListener("input", fit);
addEventListener("resize", fit); // a phone was turned: lines break elsewhere
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || composes(event) || touch.matches) return;
  event.preventDefault();
  if (!answering.isRunning(current.id)) submit();
});
$("composer").addEventListener("submit", (event) => (event.preventDefault(), submit()));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !composes(event) && !$("settings").open) answering.stop(current.id);
});

$("examples").addEventListener("click", (event) => {
  const example = event.target.closest("button");
  if (example) (send(example.textContent), focusInput());
});
$("new").addEventListener("click", startNew);
$("open-settings").addEventListener("click", () => (sidebar.close(), openSettings()));
$("colours").addEventListener("click", () => {
  settings.coloured = !settings.coloured;
  store.saveSettings();
  showEverything();
});
addEventListener("popstate", arrive);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // its address would be taken for a conversation's
  input.focus();
});
addEventListener("pagehide", () => answering.isRunning(current.id) && keep(current));
document.addEventListener("visibilitychange", () => document.hidden || connection.check(() => {}));

// The beginning

sidebar.start();
settingsDialog.start({
  system(text) {
    current.system = settings.system = text;
    store.saveSettings();
    keep(current);
  },
  key: () => connection.check(() => {}),
});
input.value ||= store.draft(); // somebody may have begun already
fit();
connection.check(() => openSettings(true));
try {
  for (const conversation of await store.all()) conversations.set(conversation.id, conversation);
} catch (error) {
  unkept(error);
}
arrive();
focusInput();
document.body.dataset.ready = true; // for whoever watches it load

if (navigator.serviceWorker) {
  const ours = "/page/sw.js";
  const policy = window.trustedTypes?.createPolicy("edgespec", { createScriptURL: () => ours });
  navigator.serviceWorker.register(policy?.createScriptURL(ours) ?? ours, { scope: "/" }).catch(console.warn);
}
