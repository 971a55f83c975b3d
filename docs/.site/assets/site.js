// Names for what the theme leaves without one, and keys for what scrolls.
function label() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code block ${index + 1}`));
  document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset .output").forEach((element) => (element.tabIndex = 0));
}
label();
new MutationObserver(label).observe(document.body, { childList: true, subtree: true });
