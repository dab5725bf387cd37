/** What is kept, in this browser only: conversations in IndexedDB, settings in localStorage. */

import { toast } from "./dom.js";

let opened = null; // a promise of the database

function database() {
  opened ??= new Promise((resolve, reject) => {
    const opening = indexedDB.open("edgespec", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("conversations", { keyPath: "id" });
    opening.onsuccess = () => {
      opening.result.onclose = () => (opened = null); // by the browser: site data cleared, a phone that slept
      resolve(opening.result);
    };
    opening.onerror = () => {
      opened = null;
      reject(opening.error);
    };
  });
  return opened;
}

async function conversations(mode, request) {
  const transaction = (await database()).transaction("conversations", mode);
  const asked = request(transaction.objectStore("conversations"));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Other tabs with this page hear which conversation changed. Null where Firefox may store nothing. */
const channel = connect();

function connect() {
  try {
    return new BroadcastChannel("edgespec");
  } catch {
    return null;
  }
}

/** Every conversation. */
export const all = () => conversations("readonly", (store) => store.getAll());

/** One of them, or undefined. */
export const get = (id) => conversations("readonly", (store) => store.get(id));

export async function put(conversation) {
  await conversations("readwrite", (store) => store.put(conversation));
  channel?.postMessage(conversation.id);
}

export async function remove(id) {
  await conversations("readwrite", (store) => store.delete(id));
  channel?.postMessage(id);
}

/** Call `listener` with the id of a conversation that another tab changed or deleted. */
export function onChange(listener) {
  if (channel) channel.onmessage = (event) => listener(event.data);
}

const DEFAULTS = {
  system: "",
  temperature: 0.7,
  top_p: null,
  top_k: null,
  min_p: null,
  seed: null,
  max_tokens: null,
  key: "",
  theme: "system",
  coloured: false,
};

export const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "seed", "max_tokens"];

/** The settings; assign, then `saveSettings()`. Null leaves a value to the server. */
export const settings = { ...DEFAULTS, ...stored() };

// What another tab has saved stays, whatever is saved here afterwards.
addEventListener("storage", ({ key }) => key === "edgespec" && Object.assign(settings, DEFAULTS, stored()));

function stored() {
  try {
    return JSON.parse(localStorage.getItem("edgespec") ?? "{}");
  } catch {
    return {};
  }
}

export function saveSettings() {
  try {
    localStorage.setItem("edgespec", JSON.stringify(settings));
  } catch (error) {
    console.error(error);
    toast("This browser does not keep settings (private window, or its storage is full). They last until the page is closed.");
  }
}

export function resetSampling() {
  for (const name of SAMPLING) settings[name] = DEFAULTS[name];
  saveSettings();
}

/** What stands in the message box: a reload keeps it, and a phone that drops this page from memory. */
export function draft() {
  try {
    return sessionStorage.getItem("draft") ?? "";
  } catch {
    return "";
  }
}

export function saveDraft(text) {
  try {
    sessionStorage.setItem("draft", text);
  } catch {
    // it lasts until the page is closed
  }
}
