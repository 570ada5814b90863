//! Everything that goes wrong around the program: engines that break, clients that leave, signals,
//! health checks, caps; and many of them at once for a long time (`soak`).
//!
//! The long run: see the head of `soak.rs`.

mod caps;
mod health;
mod leaving;
mod matrix;
mod soak;
#[path = "../proxy/support/mod.rs"]
#[expect(dead_code, reason = "shared with tests/proxy, which uses the rest")]
mod support;
mod upgrade;
