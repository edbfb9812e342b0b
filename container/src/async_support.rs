//! Which elements on the way of a request took away its support for async (Servlet section
//! 2.3.3.3).

use crate::{
    container::{ContainerTree, Level},
    mapper::{ContextIndex, Mapping},
};

/// An element that does not support async.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barring {
    /// A valve, by its place in the pipeline of a level.
    Valve { level: Level, mapping: Mapping, index: usize },
    /// A filter, by its place in its context.
    Filter { context: ContextIndex, index: usize },
    /// The servlet of a mapping.
    Servlet(Mapping),
}

impl Barring {
    /// What a warning calls it.
    pub(crate) fn name(self, tree: &ContainerTree) -> String {
        match self {
            Self::Valve { level, mapping, index } => {
                format!("valve {}", tree.valves(level, mapping)[index].name)
            }
            Self::Filter { context, index } => {
                format!("filter {}", tree.context(context).filters[index].name)
            }
            Self::Servlet(mapping) => {
                format!("servlet {}", tree.wrapper(mapping).map_or("", |wrapper| &wrapper.name))
            }
        }
    }
}
