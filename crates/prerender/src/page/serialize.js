// Runs in a world of its own: what the page has changed in its prototypes does not count here.
((limits) => {
  if (document.getElementsByTagName('*').length > limits.elements) return { fault: 'elements' };
  const root = document.documentElement;
  if (!root) return { fault: 'empty' };
  const out = { status: 0, headers: [], html: '' };
  for (const meta of document.querySelectorAll('meta[name="prerender-status-code"], meta[name="prerender-header"]')) {
    const content = meta.getAttribute('content') || '';
    if (meta.name === 'prerender-status-code') out.status = out.status || parseInt(content, 10) || 0;
    else if (out.headers.length < 20) out.headers.push(content.slice(0, 4096));
    meta.remove();
  }
  const shadows = [];
  const walk = (part) => {
    for (const element of part.querySelectorAll('*')) {
      if (element.shadowRoot) {
        shadows.push(element.shadowRoot);
        walk(element.shadowRoot);
      }
    }
  };
  walk(document);
  // Data is no script: JSON-LD, templates of frameworks with an unknown type.
  const isScript = (type) => /^(|module|importmap|speculationrules|(text|application)\/(x-)?(java|ecma|live|j)script(1\.[0-5])?)$/i.test(type.trim().split(';')[0].trim());
  const strip = (part) => {
    for (const script of part.querySelectorAll('script')) if (isScript(script.getAttribute('type') || '')) script.remove();
    for (const link of part.querySelectorAll('link[rel~="modulepreload" i], link[rel~="preload" i][as="script" i], link[rel~="import" i]')) link.remove();
    for (const image of part.querySelectorAll('img')) {
      const source = image.getAttribute('data-src') || image.getAttribute('data-lazy-src') || image.getAttribute('data-original');
      if (source && (!image.getAttribute('src') || image.getAttribute('src').startsWith('data:'))) image.setAttribute('src', source);
      const set = image.getAttribute('data-srcset');
      if (set && !image.getAttribute('srcset')) image.setAttribute('srcset', set);
    }
  };
  strip(document);
  shadows.forEach(strip);
  const doctype = document.doctype ? '<!DOCTYPE ' + document.doctype.name + '>' : '';
  const shell = root.cloneNode(false).outerHTML;
  const end = shell.lastIndexOf('</');
  const inner = root.getHTML({ serializableShadowRoots: true, shadowRoots: shadows });
  if (inner.length > limits.characters) return { fault: 'size' };
  // Lone surrogates are no text in JSON.
  out.html = (doctype + shell.slice(0, end) + inner + shell.slice(end)).toWellFormed();
  out.headers = out.headers.map((line) => line.toWellFormed());
  return out;
})
