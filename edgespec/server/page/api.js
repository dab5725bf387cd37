/** The server's API, and its refusals in words that say what to do. */

/** Something the person at the page should read; `kind` is unreachable, key, busy, context or other. */
export class Refusal extends Error {
  constructor(message, kind = "other") {
    super(message);
    this.kind = kind;
  }
}

const UNREACHABLE = "The server cannot be reached. Start it again with “edgespec serve”, then try again.";
const WRONG_KEY = "This server wants its API key, and got none or a wrong one. Enter it in the settings.";

async function request(path, key, options = {}) {
  if (/[^\x20-\xff]/.test(key)) throw new Refusal(WRONG_KEY, "key"); // no header can hold it
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(UNREACHABLE, "unreachable");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const { error } = (await response.json().catch(() => null)) ?? {};
  if (!error && response.status >= 500) return new Refusal(UNREACHABLE, "unreachable"); // a proxy says so
  return inWords(response.status, error ?? {}, Number(response.headers.get("Retry-After")));
}

function inWords(status, error, wait) {
  const said = error.message ?? `The server answered with status ${status}.`;
  const again = wait ? ` Try again in ${wait} second${wait === 1 ? "" : "s"}.` : " Try again in a moment.";
  if (status === 401) return new Refusal(WRONG_KEY, "key");
  if (status === 429) return new Refusal(`The server is busy: as many requests as it takes wait already.${again}`, "busy");
  if (error.code === "context_length_exceeded") {
    const todo = "Start a new conversation, or edit an earlier message to go on from there.";
    return new Refusal(`This conversation no longer fits into the model's context: ${said}. ${todo}`, "context");
  }
  if (status === 503) return new Refusal(`The server cannot answer now: ${said}.${again}`, "busy");
  return new Refusal(`The server refused this: ${said}`);
}

/** What is served, and what it has done: /v1/edgespec/stats. Raises Refusal. */
export async function about(key) {
  const response = await request("/v1/edgespec/stats", key);
  return response.json().catch(() => {
    throw new Refusal(UNREACHABLE, "unreachable"); // cut off, or somebody else at this address
  });
}

/** The chunks of an answer, as they come. Raises Refusal; AbortError once `signal` says so. */
export async function* answer(body, key, signal) {
  const response = await request("/v1/chat/completions", key, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, edgespec: { origins: true, stats: true } }),
    signal,
  });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw inWords(503, chunk.error, 0);
    yield chunk;
  }
  throw new Refusal("The connection broke off in the middle of the answer. Try again.", "unreachable");
}

/** The data of server-sent events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    let read;
    try {
      read = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return; // cut off: the caller misses the end
    }
    if (read.done) return;
    const whole = (held + read.value).split("\n\n");
    held = whole.pop();
    for (const event of whole) {
      if (event.startsWith("data: ")) yield event.slice("data: ".length);
    }
  }
}
