/** Scrolling that follows the end of the conversation until the person scrolls up. */

import { $ } from "./dom.js";

const NEAR = 24; // pixels that count as the end

export class Follower {
  constructor(scroller, content) {
    this.scroller = scroller;
    this.following = true;
    this.top = 0;
    scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    new ResizeObserver(() => this.following && this.toEnd()).observe(content);
    new ResizeObserver(() => this.following && this.toEnd()).observe(scroller);
    $("to-end").addEventListener("click", () => this.toEnd());
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    const atEnd = scrollHeight - clientHeight - scrollTop <= NEAR;
    if (atEnd) this.following = true;
    else if (scrollTop < this.top) this.following = false; // upwards: only people do that
    this.top = scrollTop;
    $("to-end").hidden = this.following;
  }

  toStart() {
    this.following = false;
    $("to-end").hidden = true;
    this.scroller.scrollTop = this.top = 0;
  }

  toEnd() {
    this.following = true;
    $("to-end").hidden = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
  }
}
