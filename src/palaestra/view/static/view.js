// Live updates and keys. Pages work without it: every view is a link or a form.
"use strict";

const run = document.body.dataset.run;
const live = document.getElementById("live");

async function refresh() {
  if (document.querySelector("[data-still]")) return;  // A stored episode does not change.
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const main = document.getElementById("content");
  // What the reader has opened, chosen or typed stays.
  const open = new Set([...main.querySelectorAll("details[open]")].map((d) => d.querySelector("summary")?.textContent));
  const chosen = new Set([...main.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value));
  const typed = [...main.querySelectorAll("input[type=search], select")].map((field) => field.value);
  const at = [...main.querySelectorAll("[data-row]")].indexOf(document.activeElement);
  const writing = main.querySelector("form[method=post] :focus, details.edit[open], #rename, input:not([type=checkbox]):focus, .columns[open]");
  if (writing) return;
  main.replaceChildren(...page.getElementById("content").childNodes);
  main.querySelectorAll("details").forEach((d) => { d.open = open.has(d.querySelector("summary")?.textContent); });
  main.querySelectorAll("input[type=checkbox]").forEach((box) => { box.checked = chosen.has(box.value); });
  main.querySelectorAll("input[type=search], select").forEach((field, k) => { if (typed[k] !== undefined) field.value = typed[k]; });
  prepare();
  if (at >= 0) rows()[at]?.focus();
  const status = page.querySelector(".bar .status");
  if (status) document.querySelector(".bar .status")?.replaceWith(status);
  live.textContent = `updated ${new Date().toLocaleTimeString()}`;
}

let waiting = false;
function refreshSoon() {
  // A burst of changes is one update.
  if (waiting) return;
  waiting = true;
  setTimeout(() => { waiting = false; refresh(); }, 300);
}

const rows = () => [...document.querySelectorAll("[data-row]")];
function prepare() {
  rows().forEach((row) => { row.tabIndex = -1; });
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = false;
    button.onclick = async () => {
      const answer = await fetch(button.dataset.copy);
      if (answer.ok) await navigator.clipboard.writeText(await answer.text());
      live.textContent = answer.ok ? "copied" : "could not be copied";
    };
  });
  document.querySelectorAll("#filter select, #filter input[type=range]").forEach((field) => { field.onchange = () => field.form.requestSubmit(); });
}

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  const list = rows();
  const at = list.indexOf(document.activeElement);
  if (event.key === "/") {
    document.querySelector("input[type=search]")?.focus();
    event.preventDefault();
  } else if (event.key === "j" || event.key === "k") {
    list[Math.max(0, Math.min(list.length - 1, at + (event.key === "j" ? 1 : -1)))]?.focus();
  } else if (event.key === "Enter" && at >= 0) {
    list[at].querySelector("a")?.click();
  } else if (event.key === "x" && at >= 0) {
    list[at].querySelector("input[type=checkbox]")?.click();
  } else if (event.key === "e" && at >= 0) {
    list[at].querySelector(".rename")?.click();
  } else if (event.key === "n" || event.key === "p") {
    document.querySelector(event.key === "n" ? "a[rel=next]" : "a[rel=prev]")?.click();
  } else if (event.key === "u") {
    (document.querySelector("[data-up]") ?? document.querySelector(".home"))?.click();
  }
});

// Tokens: a click or the arrow keys show the values of one token below.
function showToken(token) {
  const list = token.closest(".tokens");
  document.querySelectorAll(".tokens .current").forEach((other) => { other.classList.remove("current"); });
  token.classList.add("current");
  token.scrollIntoView({ block: "nearest" });
  const inspector = document.getElementById("inspector");
  inspector.querySelector(".text").textContent = token.textContent;
  inspector.querySelector(".values").textContent = token.title;
  const place = token.title.match(/^token (\d+)/);
  if (!place || !("address" in list.dataset)) return;
  const address = new URL(location.href);
  address.searchParams.set("at", place[1]);
  history.replaceState(null, "", address);
}

document.addEventListener("click", (event) => {
  const token = event.target.closest(".tokens span[title]");
  if (token) showToken(token);
});

document.addEventListener("keydown", (event) => {
  const list = event.target.closest(".tokens");
  if (!list || event.ctrlKey || event.metaKey || event.altKey) return;
  const tokens = [...list.querySelectorAll("span[title]")];
  const at = tokens.findIndex((token) => token.classList.contains("current"));
  const steps = { ArrowRight: at + 1, ArrowLeft: at < 0 ? tokens.length - 1 : at - 1, Home: 0, End: tokens.length - 1 };
  if (!(event.key in steps) || !tokens.length) return;
  showToken(tokens[Math.max(0, Math.min(tokens.length - 1, steps[event.key]))]);
  event.preventDefault();
});

prepare();
new EventSource(`/events${run ? `?run=${encodeURIComponent(run)}` : ""}`).addEventListener("change", refreshSoon);
