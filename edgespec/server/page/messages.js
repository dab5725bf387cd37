/** How a message looks, and what can be done with it. */

import { isEmpty, tokens } from "./conversation.js";
import { composes, copyButton, el, icon, iconButton } from "./dom.js";
import { Markdown } from "./markdown.js";

const ORIGINS = { draft: "drafted and accepted", bonus: "bonus token", corrected: "corrected by the target", plain: "decoded plainly" };

/** What the person said. `onedit(text)` replaces it, and all that came after it. */
export class Question {
  constructor(message, onedit) {
    this.message = message;
    this.onedit = onedit;
    this.element = el("li", { class: "message user" });
    this.show();
  }

  show() {
    this.element.replaceChildren(
      el("h2", { class: "visually-hidden" }, "You"),
      el("div", { class: "body", dir: "auto" }, this.message.content),
      el(
        "div",
        { class: "foot" },
        copyButton("Copy message", () => this.message.content),
        iconButton("edit", "Edit message", () => this.edit()),
      ),
    );
  }

  edit() {
    const text = el("textarea", { "aria-label": "Edit message", dir: "auto", rows: Math.min(this.message.content.split("\n").length + 1, 12) });
    text.value = this.message.content;
    const leave = () => (this.show(), this.element.querySelector('[aria-label="Edit message"]').focus());
    const form = el(
      "form",
      {
        class: "editor",
        onsubmit: (event) => {
          event.preventDefault();
          if (text.value.trim()) this.onedit(text.value);
        },
        onkeydown: (event) => {
          if (event.key === "Escape" && !composes(event)) (event.stopPropagation(), leave());
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
        },
      },
      text,
      el(
        "div",
        { class: "row" },
        el("small", {}, "Sending replaces what comes after this message."),
        el("button", { type: "button", onclick: leave }, "Cancel"),
        el("button", { type: "submit", class: "primary" }, "Send"),
      ),
    );
    this.element.replaceChildren(form);
    text.focus();
  }
}

/** An answer: complete, or growing. `actions` are {regenerate, openSettings}. */
export class Answer {
  constructor(message, actions) {
    this.message = message;
    this.waiting = el("p", { class: "waiting" }, el("span"), el("span"), el("span"));
    this.thoughts = el("div", { class: "thoughts", dir: "auto" });
    this.summary = el("summary", {}, "Thoughts");
    this.reasoning = el("details", { class: "reasoning", hidden: true }, this.summary, this.thoughts);
    this.rich = el("div", { class: "markdown" });
    this.markdown = new Markdown(this.rich);
    this.raw = el("div", { class: "tokens", hidden: true });
    this.shown = 0;
    this.error = el("div", { class: "error", role: "alert", hidden: true });
    this.meta = el("span", { class: "meta" });
    this.regenerate = iconButton("refresh", "Regenerate answer", actions.regenerate);
    this.actions = actions;
    const copy = copyButton("Copy answer", () => message.content);
    this.foot = el("div", { class: "foot" }, copy, this.regenerate, this.meta);
    this.element = el(
      "li",
      { class: "message assistant" },
      el("h2", { class: "visually-hidden" }, "Answer"),
      this.reasoning,
      el("div", { class: "body", dir: "auto" }, this.waiting, this.rich, this.raw),
      this.error,
      this.foot,
    );
  }

  /** running: more is to come. coloured: show tokens by origin. last: no message follows. */
  show({ running, coloured, last }) {
    const { message } = this;
    this.element.setAttribute("aria-busy", running);
    this.element.classList.toggle("running", running);
    this.waiting.hidden = !running || !isEmpty(message);
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      const thoughts = message.reasoning.trimEnd();
      if (thoughts !== this.toldThoughts) this.thoughts.textContent = this.toldThoughts = thoughts;
      this.summary.textContent = running && !message.content ? "Thinking…" : "Thoughts";
    }
    this.rich.hidden = coloured;
    this.raw.hidden = !coloured;
    if (coloured) this.showTokens();
    else this.markdown.show(message.content);
    this.foot.hidden = Boolean(message.error) && isEmpty(message);
    this.regenerate.hidden = !last || running;
    this.showError(running ? null : message.error, last);
    this.meta.textContent = running ? "" : summary(message);
  }

  showTokens() {
    const all = [...tokens(this.message)];
    for (const { text, origin } of all.slice(this.shown)) {
      this.raw.append(el("span", { class: origin, title: ORIGINS[origin] }, text));
    }
    this.shown = all.length;
  }

  /** Trying again replaces what follows, so only the last answer offers it. */
  showError(error, last) {
    if (error === this.toldError && last === this.toldLast) return;
    Object.assign(this, { toldError: error, toldLast: last });
    this.error.hidden = !error;
    if (!error) return this.error.replaceChildren();
    const todo = [];
    if (error.kind === "key") todo.push(["Open settings", this.actions.openSettings]);
    if (last) todo.push(["Try again", this.actions.regenerate]);
    const buttons = todo.map(([label, onclick]) => el("button", { type: "button", onclick }, label));
    this.error.replaceChildren(icon("alert"), el("p", {}, error.text), ...buttons);
  }
}

function summary({ stats, finish, error, limit }) {
  const parts = [];
  if (!finish && !error) parts.push("unfinished"); // the page was closed, or another tab has it
  if (finish === "stopped") parts.push("stopped");
  const full = limit === null || stats?.tokens < limit;
  if (finish === "length") parts.push(full ? "the context is full" : "ended at the token limit");
  if (stats) {
    parts.push(`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`);
    if (stats.decode_seconds) parts.push(`${(stats.decode_tokens / stats.decode_seconds).toFixed(1)} tok/s`);
    if (stats.drafted) parts.push(`${Math.round((100 * stats.accepted) / stats.drafted)}% of drafts accepted`);
    if (stats.estimated_speedup && stats.drafted) parts.push(`${stats.estimated_speedup.toFixed(2)} × plain (estimate)`);
  }
  return parts.join(" · ");
}
