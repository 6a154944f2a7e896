// Requests that are responded to at once, whatever the page's policy says about them. On a busy machine the responses before may still be on
// their way to the page, although they were given to the browser: when the first of these has come, they have come too, and what waited
// for them goes on before the second one has come. There are no timers: a document whose policy is `sandbox` has none.
(async () => {
  for (let turn = 0; turn < 2; turn++) {
    try { await fetch('BARRIER', { cache: 'no-store', credentials: 'omit' }); } catch {}
  }
})()
