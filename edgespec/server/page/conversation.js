/** A conversation: what it consists of, what the server is sent of it, and how an answer grows.
 *
 * A conversation is {id, title, named, system, created, updated, messages}; a message {role, content}, and of
 * an answer also reasoning, spans, stats, finish, error and limit. `spans` are the answer's tokens in order, each
 * as [characters, origin]; `limit` is how many it may have, or null. Everything is plain data, as IndexedDB keeps it.
 */

const TITLE = 100; // characters

export function create(system) {
  const random = crypto.getRandomValues(new Uint32Array(3)); // randomUUID is for secure pages only
  const now = Date.now();
  return {
    id: [...random].map((part) => part.toString(36)).join("-"),
    title: "New conversation",
    named: false,
    system,
    created: now,
    updated: now,
    messages: [],
  };
}

/** Add what the person says. An answer that failed before its first word goes. */
export function say(conversation, content) {
  const { messages } = conversation;
  const last = messages.at(-1);
  if (last?.role === "assistant" && isEmpty(last)) messages.pop();
  messages.push({ role: "user", content });
  if (!conversation.named && messages.length === 1) {
    const line = [...content.trim().split("\n", 1)[0]]; // no half of an emoji
    conversation.title = line.length > TITLE ? `${line.slice(0, TITLE - 1).join("").trimEnd()}…` : line.join("");
  }
  conversation.updated = Date.now();
}

/** Add an answer that has nothing yet; limit: tokens it may have, or null. */
export function beginAnswer(conversation, limit) {
  const message = { role: "assistant", content: "", reasoning: "", spans: [], stats: null, finish: null, error: null, limit };
  conversation.messages.push(message);
  return message;
}

/** Drop a message and all behind it. */
export function cutFrom(conversation, message) {
  conversation.messages.splice(conversation.messages.indexOf(message));
}

export const isEmpty = (message) => !message.content && !message.reasoning;

/** The messages of a request. Two of one role in a row, as a failed answer leaves them, become one. */
export function forServer(conversation) {
  const sent = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const { role, content } of conversation.messages) {
    if (!content) continue;
    if (sent.at(-1)?.role === role) sent.at(-1).content += `\n\n${content}`;
    else sent.push({ role, content });
  }
  return sent;
}

/** Take a chunk of the stream into the answer. */
export function take(message, chunk) {
  const choice = chunk.choices[0];
  if (!choice) return;
  const { content = "", reasoning_content: reasoning = "" } = choice.delta;
  message.content += content;
  message.reasoning += reasoning;
  if (content) message.spans.push([content.length, chunk.edgespec?.origin ?? "plain"]);
  message.stats = chunk.edgespec?.stats ?? message.stats;
  message.finish = choice.finish_reason ?? message.finish;
}

/** The answer's tokens as {text, origin}. */
export function* tokens(message) {
  let at = 0;
  for (const [length, origin] of message.spans) {
    yield { text: message.content.slice(at, at + length), origin };
    at += length;
  }
}
