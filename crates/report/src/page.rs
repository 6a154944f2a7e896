//! The common layout of our pages: one file without network, light or dark as the reader's system.

/// A whole page; `style` is added to the common one.
pub(crate) fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport \
         content=\"width=device-width, initial-scale=1\">\n<link rel=icon href=\"data:,\">\n<title>{}</title>\n\
         <style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// A part with a heading; the content is markup.
pub(crate) fn section(title: &str, content: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n{content}\n</section>\n")
}

/// Figures, each with its name.
pub(crate) fn cards(cards: &[(String, String)]) -> String {
    let cards: String = cards
        .iter()
        .map(|(figure, name)| {
            format!("<div class=card><b>{}</b><span>{}</span></div>", escape(figure), escape(name))
        })
        .collect();
    format!("<div class=cards>{cards}</div>\n")
}

/// Escapes text for markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --ground: #fff; --card: #f5f6f8; --line: #d5d9de;
  --one: #0b63ce; --two: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --dim: #9aa4af; --ground: #14171a; --card: #1e2328;
  --line: #383f47; --one: #6cb0ff; --two: #ff9d5c; } }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.sub { color: var(--dim); margin: .2rem 0 1rem; }
.warning { border-left: 4px solid var(--two); background: var(--card); padding: .5rem .8rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .6rem; }
.card { background: var(--card); border-radius: .4rem; padding: .6rem .8rem; }
.card b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.card span { color: var(--dim); font-size: .85rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
.sub code { overflow-wrap: anywhere; } .plot .narrow { display: none; }
@media (max-width: 40rem) { main { padding: 1rem .8rem; } .plot .narrow { display: block; } .plot .wide { display: none; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; } }
.grid { stroke: var(--line); } .line { fill: none; stroke-width: 2; }
.one { stroke: var(--one); fill: var(--one); } .two { stroke: var(--two); fill: var(--two); } .line { fill: none; }
.dashes { stroke-dasharray: 5 4; } .ring { fill: none; stroke: var(--ink); stroke-width: 2; } svg .label { fill: var(--ink); }
@media print { body { font-size: 11pt; } section, .rung, tr, .card { break-inside: avoid; } h2 { break-after: avoid; }
  pre { white-space: pre-wrap; } details::details-content { content-visibility: visible; block-size: auto; } }
pre { background: var(--card); padding: .8rem; overflow-x: auto; border-radius: .4rem; font-size: .85rem; }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("<a href=\"x\" id='y'>&"), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;");
    }
}
