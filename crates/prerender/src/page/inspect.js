// What a crawler reads of two documents: the plain page, as text, and the page as it is now. Runs in a world of its own.
((plain, limits) => {
  const short = (text) => (text ?? '').replace(/\s+/g, ' ').trim().slice(0, limits.characters).toWellFormed();
  const content = (page, selector, attribute) => {
    const found = page.querySelector(selector);
    return found ? short(attribute ? found.getAttribute(attribute) : found.textContent) : '';
  };
  const read = (page) => [
    page.documentElement?.getAttribute('lang') ?? '',
    content(page, 'head > title, title'),
    content(page, 'meta[name="description" i]', 'content'),
    content(page, 'link[rel~="canonical" i]', 'href'),
    content(page, 'meta[property="og:title"]', 'content'),
    content(page, 'meta[property="og:description"]', 'content'),
    content(page, 'meta[property="og:image"]', 'content'),
    content(page, 'meta[property="og:url"]', 'content'),
    content(page, 'h1'),
    content(page, 'meta[name="robots" i]', 'content'),
  ];
  const words = (page) => {
    const body = page.body?.cloneNode(true);
    for (const part of body?.querySelectorAll('script, style, template, noscript') ?? []) part.remove();
    return (body?.textContent ?? '').split(/\s+/).filter((word) => word).length;
  };
  const links = (page) => page.querySelectorAll('a[href]').length;
  const before = new DOMParser().parseFromString(plain, 'text/html');
  const own = new Set();
  for (const link of document.querySelectorAll('a[href]')) {
    if (own.size === limits.links) break;
    if (link.origin === location.origin) own.add(link.pathname + link.search);
  }
  return {
    plain: read(before), rendered: read(document), words: [words(before), words(document)], links: [links(before), links(document)],
    own: [...own].filter((target) => target.length < 2048), height: Math.ceil(document.documentElement?.scrollHeight ?? 0),
    unnamed: [...document.querySelectorAll('img:not([alt])')].length,
  };
})
