// What the theme leaves without a name, and what only a mouse could move sideways; the theme adds both later.
const name = () => {
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, number) => nav.setAttribute("aria-label", `Code ${number + 1}`));
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
};
new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
name();
