//! Moves of contexts to other GPUs: the choice of the GPU, and the check whether a context can go there. The move itself is a restart on that GPU.

use super::super::gpu::Gpu;
use super::super::run::Broker;
use crate::ipc::GpuChange;
use config::meant;
use protocol::ids::ContextId;

impl Broker {
    /// Returns the change of GPUs that an operator wants for a context: to GPU `to` from `from`, or from the only GPU that it is on.
    ///
    /// # Errors
    ///
    /// The operator's words name no GPU of the VM, or several; or the context cannot go there.
    pub(in crate::broker) fn gpu_change(
        &self,
        index: usize,
        ctx_id: ContextId,
        to: &str,
        from: Option<&str>,
    ) -> Result<GpuChange, String> {
        let vm = &self.vms[index];
        let context = vm.contexts.get(&ctx_id).ok_or_else(|| vm.no_such_context(ctx_id))?;
        let to = self.place_of(index, to)?;
        let here: Vec<u8> = context.keys.keys().copied().collect();
        let name = |place: u8| self.gpu_of(index, place).label();
        let place = vm.context_name(ctx_id);
        if here.contains(&to) {
            return Err(format!("{place}: it is on {} already", name(to)));
        }
        let from = match (from, &here[..]) {
            (Some(from), _) => self.place_of(index, from)?,
            (None, [only]) => *only,
            (None, _) => {
                let all: Vec<_> = here.iter().map(|place| name(*place)).collect();
                return Err(format!(
                    "{place}: it is on {}: say with --from which it leaves",
                    all.join(" and ")
                ));
            }
        };
        if !here.contains(&from) {
            return Err(format!("{place}: it is not on {}", name(from)));
        }
        match self.gpu_of(index, to).likeness.difference(&self.gpu_of(index, from).likeness) {
            Some(what) => Err(format!(
                "{place}: {} cannot take it over from {}: its {what} differ",
                name(to),
                name(from)
            )),
            None => Ok(GpuChange { from, to }),
        }
    }

    /// The GPU at a place among those of a VM.
    pub(super) fn gpu_of(&self, index: usize, place: u8) -> &Gpu {
        &self.gpus[self.vms[index].gpus[usize::from(place)].gpu]
    }

    /// Finds a GPU of a VM by its UUID, its PCI address or a part of its name. Returns its place among the VM's GPUs.
    ///
    /// # Errors
    ///
    /// No GPU fits, or several do.
    fn place_of(&self, index: usize, selection: &str) -> Result<u8, String> {
        let vm = &self.vms[index];
        let gpus = || vm.gpus.iter().map(|on| &self.gpus[on.gpu]);
        let all = || gpus().map(Gpu::label).collect::<Vec<_>>().join(", ");
        match meant(gpus().map(Gpu::names), selection)[..] {
            // A VM has few GPUs, so the number fits.
            [place] => Ok(place as u8),
            [] => Err(format!(
                "{selection}: no GPU of {}, which has {} (a spare-gpu of the VM can be moved to)",
                vm.name(),
                all()
            )),
            _ => Err(format!("{selection}: more than one GPU of {}, which has {}", vm.name(), all())),
        }
    }
}
