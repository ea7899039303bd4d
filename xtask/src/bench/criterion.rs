//! Reading what criterion leaves in `target/criterion`: one folder per benchmark, `new/benchmark.json` and `new/sample.json` in it.

use super::record::Figure;
use anyhow::{Context, Result};
use serde_json::{Map, Value};
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The figures that have been written since `started`, by name.
pub(crate) fn figures(dir: &Path, started: SystemTime) -> Result<Vec<Figure>> {
    let mut files = Vec::new();
    walk(dir, &mut files)?;
    let mut figures = Vec::new();
    for file in files {
        // File systems keep less of a time than the clock says.
        let written = fs::metadata(&file)?.modified()?;
        if written + std::time::Duration::from_secs(1) < started {
            continue;
        }
        let benchmark = read(&file)?;
        let sample = read(&file.with_file_name("sample.json"))?;
        let figure = figure(&benchmark, &sample);
        figures.push(figure.with_context(|| format!("{} is not criterion's", file.display()))?);
    }
    figures.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(figures)
}

fn read(path: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))
}

/// All `new/benchmark.json` below.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        if path.ends_with("new/benchmark.json") {
            files.push(path);
        } else if path.is_dir() {
            walk(&path, files)?;
        }
    }
    Ok(())
}

fn figure(benchmark: &Value, sample: &Value) -> Option<Figure> {
    let numbers = |key: &str| -> Option<Vec<f64>> {
        sample[key].as_array()?.iter().map(Value::as_f64).collect()
    };
    let (iterations, times) = (numbers("iters")?, numbers("times")?);
    let mut parameters = Map::new();
    for (key, name) in [
        ("group_id", "suite"),
        ("function_id", "case"),
        ("value_str", "value"),
    ] {
        if let Some(text) = benchmark[key].as_str() {
            parameters.insert(name.into(), text.into());
        }
    }
    Some(Figure {
        name: benchmark["full_id"].as_str()?.to_owned(),
        parameters,
        unit: "ns".into(),
        samples: times.iter().zip(&iterations).map(|(t, n)| t / n).collect(),
        bytes: benchmark["throughput"]["Bytes"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn write(dir: &Path, name: &str, value: &Value) {
        fs::create_dir_all(dir).expect("a folder");
        fs::write(dir.join(name), value.to_string()).expect("a file");
    }

    #[test]
    fn times_are_divided_by_repetitions_and_old_ones_are_left_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let new = dir.path().join("fold").join("f32").join("new");
        let benchmark = json!({"group_id": "fold", "function_id": "f32", "value_str": null, "throughput": {"Bytes": 64}, "full_id": "fold/f32"});
        write(&new, "benchmark.json", &benchmark);
        write(
            &new,
            "sample.json",
            &json!({"iters": [1.0, 2.0], "times": [10.0, 30.0]}),
        );
        // What criterion compares with is not this run's.
        write(
            &dir.path().join("fold").join("f32").join("base"),
            "benchmark.json",
            &benchmark,
        );
        let found = figures(dir.path(), SystemTime::now()).expect("readable");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "fold/f32");
        assert_eq!(found[0].samples, [10.0, 15.0]);
        assert_eq!(found[0].bytes, Some(64));
        assert_eq!(found[0].parameters["case"], json!("f32"));
        let later = SystemTime::now() + Duration::from_secs(60);
        assert_eq!(figures(dir.path(), later).expect("readable"), []);
        assert_eq!(
            figures(&dir.path().join("none"), later).expect("nothing"),
            []
        );
    }
}
