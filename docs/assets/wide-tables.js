// A table that is wider than its place gets a class, by which tables.css says so.
const mark = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap) => {
  wrap.classList.toggle("is-wide", wrap.scrollWidth > wrap.clientWidth + 1);
});
addEventListener("load", mark);
addEventListener("resize", mark);
