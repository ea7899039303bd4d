//! What there is to choose from, a line each, as `--help` prints it.

use crate::{rules::Rules, settings::ALL_REDUCE};
use gaggle::topology::CATALOGUE;
use std::fmt::Write;

/// All algorithms and all topologies, with what each is for.
pub fn choices(rules: &Rules) -> String {
    let mut text = String::from("Algorithms:\n");
    line(
        &mut text,
        ALL_REDUCE,
        "gradients averaged over everybody, in buckets under backward; momentum SGD",
    );
    for (name, about) in rules.all() {
        line(&mut text, name, about);
    }
    text.push_str("\nTopologies, with parameters after colons, as in torus:2x4; lazy- before a name halves every step:\n");
    for entry in CATALOGUE {
        let name = match entry.parameters {
            "" => entry.name.to_owned(),
            parameters => format!("{}:{parameters}", entry.name),
        };
        line(&mut text, &name, entry.about);
    }
    text
}

fn line(text: &mut String, name: &str, about: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "  {name:27} {about}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaggle::optim::rule_by_name;

    #[test]
    fn every_choice_has_a_line_and_every_line_says_something() {
        let rules = Rules::default().with("mine", "my own", |c| rule_by_name("dmsgd", c));
        let text = choices(&rules);
        for name in rules.names() {
            let about = text
                .lines()
                .find_map(|l| l.strip_prefix("  ")?.strip_prefix(name)?.strip_prefix(' '));
            assert!(about.is_some_and(|a| a.trim().len() > 5), "{name}");
        }
        assert!(text.contains("mine") && text.contains("my own"));
        for entry in CATALOGUE {
            assert!(text.contains(entry.about), "{}", entry.name);
        }
    }
}
