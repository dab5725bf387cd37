/** Markdown → elements. What a model writes is not trusted: its HTML is shown as text, and what the Markdown
 * becomes passes a sanitizer that knows few elements and no attribute that runs, loads or imitates anything. */

import DOMPurify from "./vendor/purify.es.mjs";
import hljs from "./vendor/highlight.min.js";
import { Marked } from "./vendor/marked.esm.js";
import { copyButton, el } from "./dom.js";

const escape = (text) =>
  text.replace(/[&<>"']/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[sign]);

const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escape(text),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`, // nothing is loaded
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    code({ text, lang }) {
      const language = (lang ?? "").match(/^[\w+#-]*/)[0];
      const known = language && hljs.getLanguage(language);
      const html = known ? hljs.highlight(text, { language, ignoreIllegals: true }).value : escape(text);
      return `<pre><code class="language-${escape(language)}">${html}</code></pre>`;
    },
  },
});

const RULES = {
  ALLOWED_TAGS:
    "p br hr h1 h2 h3 h4 h5 h6 strong em del code pre blockquote ul ol li a table thead tbody tr th td span".split(" "),
  ALLOWED_ATTR: ["href", "class", "start", "align"],
  ADD_URI_SAFE_ATTR: ["start", "align"], // every other value must be an address that is allowed
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("uponSanitizeAttribute", (node, attribute) => {
  if (attribute.attrName === "class") {
    attribute.keepAttr = /^(?:hljs-[\w-]+|language-[\w+#-]*|\w+_)(?: (?:hljs-[\w-]+|\w+_))*$/.test(attribute.attrValue);
  }
});

/** Lists and quotes in more than forty others: each level is read once more, for every token that comes. */
const TOO_DEEP = /^(?:[ \t]{80,}(?:[-*+]|\d+[.)]) |(?: ? ? ?>){40,}|(?: *[-*+] ){40,})/m;

/** The blocks of a text, and the links they name. What is nested too deeply for that (a model that loops on
 * ">") is shown as it stands. */
function blocksOf(text) {
  try {
    if (!TOO_DEEP.test(text)) return marked.lexer(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return Object.assign([{ type: "code", lang: "", text, raw: text }], { links: {} });
}

/** One block of Markdown (as marked's lexer tells them apart), as elements. */
function render(block, links) {
  const fragment = DOMPurify.sanitize(marked.parser(Object.assign([block], { links })), RULES);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = el("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of fragment.querySelectorAll("pre")) {
    const language = code.firstElementChild?.className.replace("language-", "") || "text";
    const frame = el("figure", { class: "code" }, el("figcaption", {}, language, copyButton("Copy code", () => code.textContent)));
    code.replaceWith(frame);
    code.tabIndex = 0;
    code.setAttribute("role", "group");
    code.setAttribute("aria-label", `Code, ${language}`);
    frame.append(code);
  }
  return fragment;
}

/** Text that grows, in an element. Only blocks that changed are rendered anew, so what is above the end
 * stays as it is while an answer comes: selections, scroll positions and focus with it. */
export class Markdown {
  constructor(container) {
    this.container = container;
    this.text = "";
    this.blocks = [];
    this.links = "{}";
  }

  show(text) {
    if (text === this.text) return;
    this.text = text;
    const found = blocksOf(text);
    const links = JSON.stringify(found.links);
    const relinked = links !== this.links; // what a link leads to may be said far behind it
    this.links = links;
    found.forEach((block, i) => {
      if (this.blocks[i]?.raw === block.raw && !(relinked && block.raw.includes("["))) return;
      const element = el("div", { class: "block" });
      element.append(render(block, found.links));
      if (this.blocks[i]) this.blocks[i].element.replaceWith(element);
      else this.container.append(element);
      this.blocks[i] = { raw: block.raw, element };
    });
    for (const { element } of this.blocks.splice(found.length)) element.remove();
  }
}
