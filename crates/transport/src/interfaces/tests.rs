//! What is chosen on a made-up host, what is said when nothing is, and that nothing else can come of any wish.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

fn one(index: u32, name: &str, ip: &str, up: bool) -> Interface {
    Interface {
        name: name.into(),
        index,
        ip: ip.parse().unwrap(),
        up,
    }
}

/// A host as one meets it: two networks, a bridge of containers, IPv6, and a card without a cable.
fn host() -> Vec<Interface> {
    vec![
        one(1, "lo", "127.0.0.1", true),
        one(1, "lo", "::1", true),
        one(2, "eth0", "192.168.7.2", true),
        one(2, "eth0", "fd00::2", true),
        one(2, "eth0", "fe80::2", true),
        one(3, "eth1", "10.1.2.3", true),
        one(4, "docker0", "172.17.0.1", true),
        one(5, "eth9", "10.9.9.9", false),
    ]
}

fn choose(wish: &str, usual: &str) -> Result<Option<SocketAddr>, InterfaceError> {
    let usual: IpAddr = usual.parse().unwrap();
    wish.parse::<Wish>()?
        .choose(&host(), SocketAddr::new(usual, 7))
}

#[track_caller]
fn check(wish: &str, usual: &str, want: &str) {
    let got = choose(wish, usual).unwrap();
    let got = got.map_or("as usual".into(), |a| a.ip().to_string());
    assert_eq!(got, want, "{wish} where {usual} is usual");
}

#[test]
fn names_patterns_addresses_and_networks_choose() {
    const V4: &str = "192.168.7.2";
    check("eth0", V4, V4);
    check("eth1", V4, "10.1.2.3");
    check("eth?", V4, V4);
    check("*1", V4, "10.1.2.3");
    check("10.0.0.0/8", V4, "10.1.2.3");
    // Bits of a host behind the network's do not matter.
    check("10.200.0.1/8", V4, "10.1.2.3");
    check("172.17.0.1", V4, "172.17.0.1");
    check("fd00::/8", V4, "fd00::2");
    check("fd00::2", V4, "fd00::2");
    check("::ffff:10.1.2.3", V4, "10.1.2.3");
    check(" eth7 , lo ", V4, "127.0.0.1");
}

#[test]
fn what_is_excluded_is_not_chosen() {
    const V4: &str = "192.168.7.2";
    check("eth*,^eth0", V4, "10.1.2.3");
    check("eth*,!192.168.0.0/16", V4, "10.1.2.3");
    check("eth0,!192.168.0.0/16", V4, "fd00::2");
    check("^docker*", V4, "as usual");
    check("^docker*", "127.0.0.1", "as usual");
    check("^ eth0", V4, "10.1.2.3");
    check("^lo,docker*", V4, "as usual");
    check("^lo,eth0,docker*", V4, "10.1.2.3");
    check("^eth0,!lo,^docker*", V4, "10.1.2.3");
    check("!eth0,docker*", V4, "172.17.0.1");
    check("!192.168.0.0/16", V4, "10.1.2.3");
    check("!192.168.0.0/16", "192.168.77.7", "10.1.2.3");
    check("^lo", "127.0.0.1", V4);
    check("^lo", "::1", "fd00::2");
    // An address that this host does not know of is not excluded by name.
    check("^eth0", "203.0.113.1", "as usual");
}

#[test]
fn the_usual_its_kind_and_its_family_come_first() {
    check("*", "192.168.7.2", "192.168.7.2");
    check("*", "10.1.2.3", "10.1.2.3");
    check("*", "127.0.0.1", "127.0.0.1");
    check("*", "203.0.113.1", "192.168.7.2");
    check("lo", "192.168.7.2", "127.0.0.1");
    check("eth0", "::1", "fd00::2");
    check("eth0", "::ffff:192.168.7.2", "192.168.7.2");
    // Earlier rules win over everything, and what does not run comes last.
    check("eth1,eth0", "192.168.7.2", "10.1.2.3");
    check("10.0.0.0/8", "10.9.9.9", "10.1.2.3");
    check("eth9", "10.1.2.3", "10.9.9.9");
    // Loopback and link-local: not without a wish for it.
    assert!(choose("!eth0,!eth1,!docker0,!eth9", "192.168.7.2").is_err());
    check("!eth0,!eth1,!docker0", "192.168.7.2", "10.9.9.9");
    check(
        "!192.0.0.0/8,!10.0.0.0/8,!docker0",
        "192.168.7.2",
        "fd00::2",
    );
}

#[test]
fn a_link_local_address_has_its_scope() {
    let at = choose("fe80::/10", "fd00::2").unwrap().unwrap();
    let want = SocketAddrV6::new("fe80::2".parse().unwrap(), 0, 0, 2);
    assert_eq!(at, SocketAddr::V6(want));
    assert_eq!(host()[3].addr(), "[fd00::2]:0".parse().unwrap());
}

#[test]
fn errors_say_what_was_asked_and_what_there_is() {
    let e = choose("eth7,10.9.0.0/32", "127.0.0.1").unwrap_err();
    assert_eq!(
        e.to_string(),
        "no interface matches 'eth7,10.9.0.0/32': there are lo (127.0.0.1, ::1), eth0 (192.168.7.2, fd00::2, fe80::2), eth1 (10.1.2.3), docker0 (172.17.0.1), eth9 (10.9.9.9; not running)"
    );
    // Everything excluded, nothing left.
    assert!(matches!(
        choose("^*", "127.0.0.1"),
        Err(InterfaceError::NoMatch { .. })
    ));
    let none: Wish = "eth0".parse().unwrap();
    let e = none.choose(&[], (Ipv4Addr::LOCALHOST, 0).into());
    assert_eq!(
        e.unwrap_err().to_string(),
        "no interface matches 'eth0': there are none with an address"
    );
    for (wish, said) in [
        ("", "'' in '' is empty"),
        ("eth0,,eth1", "'' in 'eth0,,eth1' is empty"),
        ("^", "'^' in '^' is empty"),
        ("!^eth0", "'!^eth0' in '!^eth0' is excluded twice"),
        ("10.0.0.0/33", "is not a network"),
        ("10.0.0/8", "is not a network"),
        ("eth0/8", "is not a network"),
        ("fd00::/129", "is not a network"),
        ("fd00:::1", "is not an IPv6 address"),
        ("[::1]", "is not an IPv6 address"),
        ("eth0 eth1", "contains a space"),
    ] {
        let e = wish.parse::<Wish>().unwrap_err().to_string();
        assert!(e.contains(said), "{wish}: {e}");
    }
}

#[test]
fn the_system_lists_addresses_that_can_be_bound() {
    let all = interfaces().unwrap();
    assert!(all.iter().any(|i| i.ip.is_loopback()), "{all:?}");
    for i in all.iter().filter(|i| i.up) {
        let addr = i.addr();
        std::net::TcpListener::bind(addr).unwrap_or_else(|e| panic!("{i:?}: {e}"));
    }
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|n| IpAddr::V4(Ipv4Addr::from(n))),
        any::<u128>().prop_map(|n| IpAddr::V6(Ipv6Addr::from(n)).to_canonical()),
    ]
}

fn any_interface() -> impl Strategy<Value = Interface> {
    (1u32..5, "[a-c]{1,2}[0-2]", any_ip(), any::<bool>()).prop_map(|(index, name, ip, up)| {
        Interface {
            name,
            index,
            ip,
            up,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    /// Whatever is written is read or refused, and what is read is shown as it was written.
    #[test]
    fn no_text_is_too_odd(text in "[a-z0-9:./,^!*? ]{0,24}|\\PC{0,12}") {
        if let Ok(wish) = text.parse::<Wish>() {
            prop_assert_eq!(wish.to_string(), text);
        }
    }

    /// Every address is found by itself, by its networks and by its interface, and by none of them once it is excluded.
    #[test]
    fn each_address_is_matched_by_what_describes_it(i in any_interface(), usual in any_ip(), bits in 0u8..=128) {
        let there = [i.clone()];
        let usual = SocketAddr::new(usual, 1);
        let bits = bits.min(if i.ip.is_ipv4() { 32 } else { 128 });
        for rule in [i.ip.to_string(), format!("{}/{bits}", i.ip), i.name.clone(), format!("{}*", &i.name[..1])] {
            let wish: Wish = rule.parse().unwrap();
            prop_assert_eq!(wish.choose(&there, usual), Ok(Some(i.addr())), "{}", rule);
            let not: Wish = format!("*,^{rule}").parse().unwrap();
            let none = matches!(not.choose(&there, usual), Err(InterfaceError::NoMatch { .. }));
            prop_assert!(none, "{}", rule);
        }
    }

    /// The choice is one that a rule matches and none excludes, whatever the order in which the system lists.
    #[test]
    fn the_choice_does_not_depend_on_the_order(
        mut there in proptest::collection::vec(any_interface(), 1..8),
        usual in any_ip(),
        wish in "(a\\*|b\\?[0-2]|0\\.0\\.0\\.0/1|::/1),\\^[a-c]\\*",
    ) {
        let wish: Wish = wish.parse().unwrap();
        let usual = SocketAddr::new(usual, 1);
        let chosen = |there: &[Interface]| wish.choose(there, usual).ok();
        let first = chosen(&there);
        there.reverse();
        prop_assert_eq!(first, chosen(&there));
        if let Some(Some(at)) = first {
            let ok = |i: &Interface| i.ip == at.ip()
                && wish.wanted.iter().any(|m| m.matches(&i.name, i.ip))
                && !wish.excluded.iter().any(|m| m.matches(&i.name, i.ip));
            prop_assert!(there.iter().any(ok));
        }
    }
}
