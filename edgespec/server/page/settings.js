/** The settings: they apply as they are typed, each with its own word about what is wrong with it. */

import { $ } from "./dom.js";
import { SAMPLING, resetSampling, saveSettings, settings } from "./store.js";

/** actions: {system(text), key()}, called when the system prompt or the key has changed. */
export function start(actions) {
  const form = $("settings-form");
  form.addEventListener("input", ({ target }) => {
    if (SAMPLING.includes(target.name)) takeNumber(target);
    else if (target.name === "system") actions.system(target.value);
    else if (target.name === "theme") setTheme(target.value);
  });
  form.addEventListener("change", ({ target }) => {
    if (target.name !== "key") return;
    settings.key = target.value.trim();
    saveSettings();
    actions.key();
  });
  $("reset-sampling").addEventListener("click", () => {
    resetSampling();
    fill(form.elements.system.value);
  });
  $("settings").addEventListener("click", (event) => event.target === event.currentTarget && event.target.close());
}

/** Open it; wrongKey: the server asked for a key, or another one. */
export function open(system, wrongKey = false) {
  fill(system);
  $("key-field").hidden = !wrongKey && !settings.key;
  if (!$("settings").open) $("settings").showModal();
  if (wrongKey) $("settings-form").elements.key.focus();
}

function fill(system) {
  const fields = $("settings-form").elements;
  fields.system.value = system;
  fields.key.value = settings.key;
  fields.theme.value = settings.theme;
  for (const name of SAMPLING) {
    fields[name].value = settings[name] ?? "";
    complain(fields[name]);
  }
}

function takeNumber(field) {
  if (!complain(field)) return;
  settings[field.name] = field.value === "" ? null : Number(field.value);
  saveSettings();
}

/** Whether the field is right; says so beside it if not. */
function complain(field) {
  const right = field.checkValidity();
  field.setAttribute("aria-invalid", !right);
  $(`${field.id}-error`).textContent = right ? "" : `${field.validationMessage} Not used.`;
  return right;
}

function setTheme(theme) {
  settings.theme = theme;
  saveSettings();
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
