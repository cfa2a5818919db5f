// Keeps a page as it is in the database: when the server says that something changed, the page is fetched again and
// its parts marked data-live are replaced. Without this script everything works, as of the page's loading.
"use strict";
(() => {
  const events = document.body.dataset.events;
  if (events === undefined) return;
  const sign = document.getElementById("live");
  const LEAST_MS = 1000, WITHOUT_STREAM_MS = 5000;
  let wanted = false, busy = false, last = 0, timer = 0;

  const say = (text, lost) => {
    if (sign.textContent !== text) sign.textContent = text;
    sign.classList.toggle("lost", lost);
  };

  // What a person does in a part must outlive its replacement: choices, opened details, the focus.
  const keep = (part) => ({
    chosen: new Set([...part.querySelectorAll("input:checked")].map((each) => each.value)),
    open: new Map([...part.querySelectorAll("details[id]")].map((each) => [each.id, each.open])),
    focus: part.contains(document.activeElement) ? document.activeElement.id : "",
    scroll: [...part.querySelectorAll(".scroll, pre"), part].map((each) => [each.scrollLeft, each.scrollTop]),
  });
  const restore = (part, kept) => {
    for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = kept.chosen.has(box.value);
    for (const each of part.querySelectorAll("details[id]")) if (kept.open.has(each.id)) each.open = kept.open.get(each.id);
    [...part.querySelectorAll(".scroll, pre"), part].forEach((each, i) => {
      if (kept.scroll[i]) [each.scrollLeft, each.scrollTop] = kept.scroll[i];
    });
    if (kept.focus) document.getElementById(kept.focus)?.focus({ preventScroll: true });
  };
  const isTyping = (part) => {
    const at = document.activeElement;
    return part.contains(at) && (at.matches("select, textarea") || at.matches("input:not([type=checkbox])"));
  };

  const source = new Map(); // the last markup from the server: what a person opened or chose is not in it
  const replace = (fresh) => {
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (!other || isTyping(part) || part.contains(window.getSelection()?.anchorNode) && !window.getSelection().isCollapsed) continue;
      if (source.get(part.id) === other.outerHTML) continue;
      source.set(part.id, other.outerHTML);
      const kept = keep(part);
      const made = document.importNode(other, true);
      part.replaceWith(made);
      restore(made, kept);
    }
  };

  const fetchPage = () => {
    busy = true;
    wanted = false;
    last = Date.now();
    // An XMLHttpRequest parses a document without running its scripts, and without a string that could become one.
    const request = new XMLHttpRequest();
    request.open("GET", location.href.split("#")[0]);
    request.responseType = "document";
    request.timeout = 15000;
    request.onload = () => {
      if (request.status === 200 && request.response?.body.dataset.events !== undefined) {
        replace(request.response);
        say("Live", false);
      } else say(request.status === 404 ? "Gone" : "Out of date", true);
    };
    request.onerror = request.ontimeout = () => say("Connection lost", true);
    request.onloadend = () => {
      busy = false;
      if (wanted) soon();
    };
    request.send();
  };
  const soon = () => {
    wanted = true;
    if (busy || timer || document.hidden) return;
    timer = setTimeout(() => {
      timer = 0;
      if (!busy && !document.hidden) fetchPage();
    }, Math.max(0, last + LEAST_MS - Date.now()));
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && wanted) soon(); });

  if (events && window.EventSource) {
    const stream = new EventSource(events);
    let begun = false;
    stream.addEventListener("hello", () => {
      say("Live", false);
      if (begun) soon(); // it was lost meanwhile
      begun = true;
    });
    for (const name of ["changed", "tick"]) stream.addEventListener(name, soon);
    stream.onerror = () => say("Connection lost", true);
    window.addEventListener("pagehide", () => stream.close());
    window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  } else setInterval(soon, WITHOUT_STREAM_MS);
})();
