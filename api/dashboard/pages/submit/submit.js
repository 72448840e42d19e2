export const submitPage = () => ({ refresh: async () => {}, shows: () => false }); export const clonePage = submitPage;
