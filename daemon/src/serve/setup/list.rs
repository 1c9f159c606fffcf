//! The table of GPUs for people, with a line for each: they read it and choose a GPU by its name, its PCI address or its UUID.

use config::{GpuInfo, hexadecimal};
use outside::Bytes;
use std::fmt;
use unicode_width::UnicodeWidthStr;

/// GPUs, which are shown as a table without a line break at its end.
#[derive(Clone, Debug)]
pub struct List(Vec<GpuInfo>);

impl From<Vec<GpuInfo>> for List {
    fn from(gpus: Vec<GpuInfo>) -> Self {
        Self(gpus)
    }
}

/// The cells of a line.
type Row = [String; 7];

const HEAD: [&str; 7] = ["NAME", "KIND", "MEMORY", "DRIVER", "VULKAN", "PCI ADDRESS", "UUID"];
/// The text of a cell for which the driver reports no value.
const NOTHING: &str = "-";

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<Row> = self.0.iter().map(row).collect();
        let head = HEAD.map(str::to_owned);
        let all = || std::iter::once(&head).chain(&rows);
        let widths: [usize; 7] =
            std::array::from_fn(|column| all().map(|row| row[column].width()).max().unwrap_or(0));
        f.write_str(line(&head, &widths).trim_end())?;
        for (row, gpu) in rows.iter().zip(&self.0) {
            write!(f, "\n{}", line(row, &widths).trim_end())?;
            if let Err(reason) = gpu.choice(None) {
                write!(f, "  [unusable: {reason}]")?;
            }
        }
        Ok(())
    }
}

fn row(gpu: &GpuInfo) -> Row {
    let version = gpu.api_version;
    let (major, minor, patch) = (version >> 22 & 0x7f, version >> 12 & 0x3ff, version & 0xfff);
    let cells = [
        gpu.name.clone(),
        gpu.kind.name().to_owned(),
        Bytes(gpu.device_memory).to_string(),
        gpu.driver.clone(),
        format!("{major}.{minor}.{patch}"),
        gpu.pci_address.clone().unwrap_or_default(),
        dashed(&gpu.uuid),
    ];
    cells.map(|cell| if cell.is_empty() { NOTHING.to_owned() } else { cell })
}

/// Returns the cells, each as wide as its column.
fn line(row: &Row, widths: &[usize; 7]) -> String {
    let padded = |(cell, width): (&String, &usize)| {
        let missing = width.saturating_sub(cell.width());
        format!("{cell}{:missing$}  ", "")
    };
    row.iter().zip(widths).map(padded).collect()
}

fn dashed(uuid: &[u8; 16]) -> String {
    let text = hexadecimal(uuid);
    [&text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{DriverMapped, GpuKind, Likeness, MemoryTrial};

    fn gpu(name: &str, kind: GpuKind, driver: &str, pci: Option<&str>, usable: Result<(), &str>) -> GpuInfo {
        let driver_mapped = DriverMapped::default();
        let usable = usable.map(|()| MemoryTrial {
            mappable_types: 1,
            shareable: true,
            driver_mapped,
            exportable_types: 0,
        });
        GpuInfo {
            name: name.into(),
            uuid: [0xab; 16],
            pci_address: pci.map(Into::into),
            driver: driver.into(),
            api_version: 1 << 22 | 3 << 12 | 290,
            kind,
            device_memory: 3 << 29,
            likeness: Likeness::default(),
            memfd: usable.map_err(Into::into),
            dma_buf: Err(usable.err().unwrap_or_default().into()),
        }
    }

    #[test]
    fn each_gpu_is_a_line_whose_cells_stand_below_those_of_the_head() {
        let gpus = vec![
            gpu("Name of a GPU", GpuKind::Discrete, "driver 1", Some("0000:01:00.0"), Ok(())),
            gpu("名", GpuKind::Software, "", None, Err("no Vulkan 1.3")),
        ];
        let uuid = "abababab-abab-abab-abab-abababababab";
        let expected = [
            "NAME           KIND      MEMORY  DRIVER    VULKAN   PCI ADDRESS   UUID".to_owned(),
            format!("Name of a GPU  discrete  1.5GiB  driver 1  1.3.290  0000:01:00.0  {uuid}"),
            format!(
                "名             software  1.5GiB  -         1.3.290  -             {uuid}  [unusable: no Vulkan 1.3]"
            ),
        ];
        assert_eq!(List::from(gpus).to_string().lines().collect::<Vec<_>>(), expected);
    }
}
