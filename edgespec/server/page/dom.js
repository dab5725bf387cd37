/** Small things the other modules share: making elements, icons, and telling people what happened. */

export const $ = (id) => document.getElementById(id);

/** An element; attributes that begin with "on" are listeners, `true` is an attribute without a value. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** One of the symbols in index.html. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows an icon only; its label is its name for assistive technology, and its tooltip. */
export function iconButton(name, label, onclick) {
  return el("button", { type: "button", class: "ghost square", "aria-label": label, title: label, onclick }, icon(name));
}

/** Give a button another icon and name. */
export function relabel(button, name, label) {
  button.querySelector("use").setAttribute("href", `#i-${name}`);
  button.setAttribute("aria-label", label);
  button.title = label;
}

/** For screen readers: what sighted people see happen. */
export function announce(text) {
  $("announcer").textContent = text;
}

/** A message that goes away by itself, with something to do about it if `action` is given. */
export function toast(text, action) {
  const box = el("div", { class: "toast" }, el("span", {}, text));
  const dismiss = () => box.remove();
  if (action) {
    box.append(el("button", { type: "button", onclick: () => (dismiss(), action.run()) }, action.label));
  }
  $("toasts").replaceChildren(box);
  setTimeout(dismiss, action ? 10_000 : 5_000);
}

/** Whether a key is for an input method (of Japanese, say): Enter takes the word that it offers, Escape drops it. Safari
 * tells of that Enter when the composition has ended already, by this number alone. */
export const composes = (event) => event.isComposing || event.keyCode === 229;

/** Put text on the clipboard; pages that did not come over HTTPS or from this machine need the old way. */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const focused = document.activeElement;
  const area = el("textarea", { class: "visually-hidden", readonly: true }); // or a phone shows its keyboard
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  if (!copied) throw new Error("the browser did not copy");
}

/** A button that copies what `text()` says and confirms it by its icon. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    try {
      await copy(text());
      relabel(button, "check", "Copied");
      announce("Copied");
      setTimeout(() => relabel(button, "copy", label), 1_500);
    } catch {
      toast("The browser did not allow copying. Select the text and copy it by hand.");
    }
  });
  return button;
}
