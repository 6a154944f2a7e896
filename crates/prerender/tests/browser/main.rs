//! The renderer with a real chromium. Nothing leaves the machine: the browser has no network, and the sites of these tests are Unix
//! sockets.

mod origin;
mod pages;
mod trouble;
mod walls;
