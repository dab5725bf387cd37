/** The list of conversations, and the drawer it becomes on phones. */

import { $, composes, el, iconButton } from "./dom.js";

const narrow = matchMedia("(max-width: 820px)");

/** actions: {open(id), rename(id, title), remove(id)} */
export function show(conversations, current, actions) {
  if ($("conversations").querySelector("input")) return; // somebody is writing a title
  const items = [...conversations].sort((a, b) => b.updated - a.updated);
  const focused = document.activeElement;
  const held = focused?.closest("#conversations li");
  const place = held && [held.querySelector("a").hash, [...held.children].indexOf(focused)];
  $("conversations").replaceChildren(...items.map((item) => entry(item, item.id === current, actions)));
  if (place) document.querySelector(`#conversations a[href="${place[0]}"]`)?.parentElement.children[place[1]].focus();
  $("no-conversations").hidden = items.length > 0;
}

function entry(conversation, isCurrent, actions) {
  const link = el(
    "a",
    { href: `#${conversation.id}`, "aria-current": isCurrent ? "page" : null, title: conversation.title, onclick: close },
    conversation.title,
  );
  const item = el(
    "li",
    { class: isCurrent ? "current" : null },
    link,
    iconButton("edit", `Rename “${conversation.title}”`, () => rename(item, conversation, actions)),
    iconButton("trash", `Delete “${conversation.title}”`, () => actions.remove(conversation.id)),
  );
  return item;
}

function rename(item, conversation, actions) {
  const kept = [...item.childNodes];
  const input = el("input", { "aria-label": "Title", maxlength: 200, value: conversation.title });
  let done = false;
  const end = (title) => {
    if (done) return;
    done = true;
    input.remove();
    if (title?.trim() && title !== conversation.title) actions.rename(conversation.id, title.trim());
    else item.replaceChildren(...kept);
  };
  input.addEventListener("keydown", (event) => {
    if (composes(event)) return;
    if (event.key === "Enter") end(input.value);
    if (event.key === "Escape") (event.stopPropagation(), end(null));
  });
  input.addEventListener("blur", () => end(input.value));
  item.replaceChildren(input);
  input.select();
}

function open() {
  document.body.classList.add("drawer");
  $("main").inert = true;
  $("open-sidebar").setAttribute("aria-expanded", "true");
  $("close-sidebar").focus();
}

export function close() {
  if (!document.body.classList.contains("drawer")) return;
  document.body.classList.remove("drawer");
  $("main").inert = false;
  $("sidebar").inert = narrow.matches;
  $("open-sidebar").setAttribute("aria-expanded", "false");
  $("open-sidebar").focus();
}

/** Make the drawer work. */
export function start() {
  const fit = () => {
    close();
    $("sidebar").inert = narrow.matches;
  };
  narrow.addEventListener("change", fit);
  fit();
  $("open-sidebar").addEventListener("click", () => (($("sidebar").inert = false), open()));
  $("close-sidebar").addEventListener("click", close);
  $("scrim").addEventListener("click", close);
  $("sidebar").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || composes(event) || !document.body.classList.contains("drawer")) return;
    event.stopPropagation(); // it would stop the answer
    close();
  });
}
