//! What is checked line by line: Rust sources and Markdown.

/// A line number, from 1, and what is wrong there.
type Fault = (usize, String);

/// The module's doc, and reasons beside exceptions.
pub(super) fn rust(text: &str) -> Vec<Fault> {
    let mut faults = Vec::new();
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("#!["));
    if !first.is_some_and(|line| line.starts_with("//!")) {
        faults.push((1, "the file does not say what it is for (`//!`)".into()));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let attribute = line.strip_prefix("#![").or_else(|| line.strip_prefix("#["));
        let Some(attribute) = attribute else { continue };
        let exception = ["allow(", "expect("]
            .iter()
            .any(|word| attribute.starts_with(word));
        if exception && !whole(text, number).contains("reason") {
            faults.push((number, "an exception without a `reason`".into()));
        }
        if attribute.starts_with("ignore]") {
            faults.push((number, "an ignored test without a reason".into()));
        }
    }
    faults
}

/// The attribute that begins on this line, to its closing bracket.
fn whole(text: &str, number: usize) -> String {
    let mut whole = String::new();
    let mut depth = 0_i32;
    for line in text.lines().skip(number - 1) {
        for c in line.chars() {
            match c {
                '[' => depth += 1,
                ']' => depth -= 1,
                _ => {}
            }
            whole.push(c);
            if c == ']' && depth == 0 {
                return whole;
            }
        }
    }
    whole
}

/// Relative links that lead nowhere; `exists` gets them without their `#part`.
pub(super) fn markdown(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for link in links(line) {
            let path = link.split_once('#').map_or(link, |(path, _)| path);
            let elsewhere = path.contains("://") || path.starts_with("mailto:");
            if !path.is_empty() && !elsewhere && !exists(path) {
                faults.push((number, format!("the link to {link} leads nowhere")));
            }
        }
    }
    faults
}

/// The targets of `[text](target)`, outside of `code`.
fn links(line: &str) -> Vec<&str> {
    let outside = line.split('`').step_by(2);
    let after =
        outside.flat_map(|part| part.match_indices("](").map(move |(at, _)| &part[at + 2..]));
    let targets = after
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target);
    targets
        .map(|target| target.split(' ').next().unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(faults: Vec<Fault>) -> Vec<usize> {
        faults.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn sources_must_say_what_they_are_for() {
        assert!(rust("//! Doc.\nfn f() {}\n").is_empty());
        assert!(rust("#![forbid(unsafe_code)]\n\n//! Doc.\n").is_empty());
        assert_eq!(lines(rust("use std::fs;\n//! Late.\n")), [1]);
        assert_eq!(lines(rust("")), [1]);
    }

    #[test]
    fn exceptions_need_reasons() {
        assert!(rust("//! D\n#[allow(dead_code, reason = \"why\")]\n#[allow(\n    x,\n    reason = \"why\"\n)]\n").is_empty());
        assert_eq!(
            lines(rust(
                "//! D\n#[allow(dead_code)]\nfn f() {}\n    #[expect(x)]\n#[cfg(reason)]\n"
            )),
            [2, 4]
        );
        assert_eq!(lines(rust("//! D\n#[ignore]\n#[ignore = \"slow\"]\n")), [2]);
    }

    #[test]
    fn links_are_followed() {
        let page = "[a](there.md) [b](https://x.y/z) [c](#part) ![d](gone.svg)\n`[e](code)`\n```\n[f](fenced)\n```\n[g](there.md#part) [h](dir/gone.md \"title\")";
        assert_eq!(lines(markdown(page, |link| link == "there.md")), [1, 6]);
    }
}
