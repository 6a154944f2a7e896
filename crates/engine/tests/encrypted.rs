//! Runs the plain tests again over TLS, through a client that encrypts.
#![allow(clippy::duplicate_mod, reason = "each of these files has a module for what its tests share")]

#[path = "forms.rs"]
mod forms;
#[path = "hostile.rs"]
mod hostile;
#[path = "lane.rs"]
mod lane;
#[path = "rooms.rs"]
mod rooms;
