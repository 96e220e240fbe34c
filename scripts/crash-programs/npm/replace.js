require('write-file-atomic')('file', 'new content\n').then(() => console.log('replaced'))
