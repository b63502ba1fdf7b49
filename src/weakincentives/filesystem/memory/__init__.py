"""The in-memory backend. Other packages import its copy-on-write nodes from here."""

from weakincentives.filesystem.memory.nodes import CopyOnWriteDict as CopyOnWriteDict
from weakincentives.filesystem.memory.nodes import DirectoryNode as DirectoryNode
from weakincentives.filesystem.memory.nodes import FileNode as FileNode
from weakincentives.filesystem.memory.nodes import LinkNode as LinkNode
from weakincentives.filesystem.memory.nodes import Node as Node
from weakincentives.filesystem.memory.nodes import TreeStack as TreeStack
from weakincentives.filesystem.memory.nodes import build_tree as build_tree
from weakincentives.filesystem.memory.nodes import changed_files as changed_files
