//! The transport over packets keeps the contract, over a link between threads.

#![cfg(unix)]

use gaggle_core::Transport;
use gaggle_spikes::packets::{PacketTransport, memory};
use gaggle_transport::contract::{self, Tier};

#[test]
fn keeps_the_contract() {
    let mut make = |n| -> Vec<Box<dyn Transport>> {
        let links = (0..).zip(memory::world(n));
        links
            .map(|(me, link)| {
                let t = PacketTransport::new(gaggle_core::Rank(me), n, link, None);
                Box::new(t) as Box<dyn Transport>
            })
            .collect()
    };
    let mut tier = Tier::TCP;
    tier.tagged = 0;
    contract::run(&mut make, tier);
}
