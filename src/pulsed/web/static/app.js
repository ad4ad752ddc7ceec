// The dashboard's behaviour: live updates, keyboard, themes, local times. No framework.
"use strict";
(() => {
  const base = document.querySelector('meta[name="base"]').content;
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // -- times: what the server wrote in UTC, in the reader's own zone ---------------------------------
  function format(options) {
    try { return new Intl.DateTimeFormat(undefined, options); }
    catch { return new Intl.DateTimeFormat("en", options); } // a browser in the POSIX locale
  }
  const long = format({ dateStyle: "medium", timeStyle: "medium" });
  const short = format({ month: "short", day: "numeric", hour: "numeric", minute: "2-digit", second: "2-digit" });
  function localTimes(root = document) {
    for (const time of $$("time[data-local]", root)) {
      time.textContent = (time.dataset.local === "short" ? short : long).format(new Date(time.dateTime));
    }
  }

  // -- live: one stream per visible tab ---------------------------------------------------------------
  let stream = null, heard = 0, leaving = new AbortController();
  const live = $("[data-live]");
  function say(text, state) { live.lastElementChild.textContent = text; live.dataset.state = state; }
  function connect() {
    if (stream || document.hidden) return;
    stream = new EventSource(`${base}/live`);
    stream.addEventListener("summary", (event) => {
      heard = Date.now();
      const summary = JSON.parse(event.data);
      if (summary.unreachable) return say("the database cannot be reached", "bad");
      say("live · updated just now", "good");
      for (const count of $$("[data-count]")) {
        const value = count.dataset.count === "workers" ? summary.workers
          : Object.values(summary.counts).reduce((a, b) => a + b, 0);
        count.textContent = compact(value);
      }
      document.body.dispatchEvent(new CustomEvent("pulsed:tick", { detail: summary }));
      refresh();
    });
    stream.addEventListener("again", () => { disconnect(); connect(); });
    stream.onerror = () => say("not connected", "bad");
  }
  function disconnect() { if (stream) { stream.close(); stream = null; } }
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  addEventListener("pagehide", disconnect);
  // A form's answer is the next page. This one asks for nothing more: the form may delete what it shows.
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    disconnect();
    leaving.abort();
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) { leaving = new AbortController(); connect(); }
  });
  setInterval(() => {
    if (heard && live.dataset.state === "good") {
      const seconds = Math.round((Date.now() - heard) / 1000);
      say(seconds < 1 ? "live · updated just now" : `live · updated ${seconds} s ago`, "good");
    }
  }, 1000);

  function compact(value) {
    if (value < 1e4) return value.toLocaleString("en");
    if (value < 999500) return `${(value / 1e3).toFixed(value < 99500 ? 1 : 0)} k`;
    return `${(value / 1e6).toFixed(1)} M`;
  }

  // Elements with data-refresh replace their content by that of the same element in the page's new
  // version, unless nothing changed or the reader is using them.
  const busy = new WeakSet();
  async function refresh() {
    for (const element of $$("[data-refresh]")) {
      if (busy.has(element) || element.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select")) continue;
      busy.add(element);
      try {
        const answer = await fetch(element.dataset.refresh, { headers: { "X-Refresh": "1" }, signal: leaving.signal });
        if (!answer.ok) continue;
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const same = $(`[data-refresh="${CSS.escape(element.dataset.refresh)}"]`, fresh);
        if (same && same.innerHTML !== element.dataset.last) {
          element.dataset.last = same.innerHTML;
          morph(element, same);
          localTimes(element);
          document.dispatchEvent(new CustomEvent("pulsed:refreshed", { detail: element }));
        }
      } catch { /* the stream says so */ } finally { busy.delete(element); }
    }
  }

  // Makes one element's children like another's, and keeps what is equal: focus, selection and
  // scroll positions survive.
  function morph(now, next) {
    const olds = [...now.childNodes], news = [...next.childNodes];
    news.forEach((node, index) => {
      const old = olds[index];
      if (!old) now.append(document.importNode(node, true));
      else if (old.nodeType !== node.nodeType || old.nodeName !== node.nodeName || (old.dataset?.keep !== node.dataset?.keep)) {
        old.replaceWith(document.importNode(node, true));
      } else if (old.nodeType === Node.TEXT_NODE) {
        if (old.data !== node.data) old.data = node.data;
      } else if (old.dataset?.keep === undefined) {
        for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && name !== "open" && name !== "data-last") old.removeAttribute(name);
        for (const { name, value } of [...node.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
        morph(old, node);
      }
    });
    olds.slice(news.length).forEach((node) => node.remove());
  }

  // -- keyboard ---------------------------------------------------------------------------------------
  const typing = (target) => target.matches("input:not([type=checkbox]), textarea, select, [contenteditable]");
  let row = -1;
  function select(index) {
    const rows = $$("tr[data-row]");
    if (!rows.length) return;
    row = Math.max(0, Math.min(index, rows.length - 1));
    rows.forEach((each, number) => each.classList.toggle("current", number === row));
    rows[row].scrollIntoView({ block: "nearest" });
    $("a", rows[row])?.focus({ preventScroll: true });
  }
  document.addEventListener("pulsed:refreshed", () => {
    $$("tr[data-row]").forEach((each, number) => each.classList.toggle("current", number === row));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && typing(event.target)) return event.target.blur();
    if (typing(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    const current = $$("tr[data-row]")[row];
    switch (event.key) {
      case "/": $("[data-search]").focus(); $("[data-search]").select(); break;
      case "j": select(row + 1); break;
      case "k": select(row - 1); break;
      case "x": $('input[type="checkbox"]', current ?? document.createElement("p"))?.click(); break;
      case "?": $("[data-help]").showModal(); break;
      default: return;
    }
    event.preventDefault();
  });

  // -- theme, menu ------------------------------------------------------------------------------------
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-theme-switch]")) {
      const dark = document.documentElement.dataset.theme
        ? document.documentElement.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      document.documentElement.dataset.theme = dark ? "light" : "dark";
      try { localStorage.setItem("pulsed-theme", dark ? "light" : "dark"); } catch { /* not kept */ }
      document.dispatchEvent(new CustomEvent("pulsed:theme"));
    }
    const menu = event.target.closest(".menu");
    if (menu) menu.setAttribute("aria-expanded", String(menu.getAttribute("aria-expanded") !== "true"));
  });

  // -- what the last act did ----------------------------------------------------------------------------
  for (const toast of $$(".toast:not(.bad)")) setTimeout(() => toast.remove(), 8000);

  localTimes();
  connect();
})();
